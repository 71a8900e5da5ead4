-- Every task of a connector asks this before it streams: Connect starts tasks by itself, and may
-- not do so from a slot that nobody has looked at since it was read from last.
CREATE OR REPLACE FUNCTION headwater.may_stream(capture text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $may_stream$
BEGIN
    IF current_setting('application_name') <> 'Debezium General' THEN
        RETURN true;  -- a validation, which streams nothing
    END IF;
    PERFORM FROM headwater.captures c
      JOIN pg_replication_slots s ON s.slot_name = c.slot
      LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
     WHERE c.source = capture AND c.lost IS NULL
       AND (r.application_name = 'Debezium Streaming'
            OR s.active_pid IS NULL AND s.confirmed_flush_lsn = c.cleared_lsn);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'capture of % waits until its slot has been looked at', capture
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'headwater up looks at it, and watches over it from then on';
    END IF;
    RETURN true;
END
$may_stream$;
