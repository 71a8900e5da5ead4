-- Keys of the persons in personal fields. They live apart from events: in a schema of their own, and
-- where that is wanted in another database, with its own role, backups and retention.
--
-- A row whose key is NULL is a subject that was forgotten: it stays, so that a later event does not
-- quietly give the subject a new key.
CREATE SCHEMA eventstore_keys;

CREATE TABLE eventstore_keys.subject_keys (
    tenant text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    generation integer NOT NULL DEFAULT 1,  -- one more each time the subject was re-admitted
    wrapped_key bytea,                      -- encrypted by a master key that is not in here
    master_key_id text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    shredded_at timestamptz,
    CONSTRAINT pk_subject_keys PRIMARY KEY (tenant, subject),
    CONSTRAINT ck_subject_keys_generation CHECK (generation >= 1),
    CONSTRAINT ck_subject_keys_shredded CHECK (
        (wrapped_key IS NULL) = (shredded_at IS NOT NULL)
        AND (wrapped_key IS NULL) = (master_key_id IS NULL))
);

-- What a rotation of the master key still has to do.
CREATE INDEX ix_subject_keys_master_key_id
    ON eventstore_keys.subject_keys (master_key_id, tenant, subject)
    WHERE wrapped_key IS NOT NULL;

SELECT eventstore.hold_to_tenant('eventstore_keys.subject_keys');

-- Forgets a subject: its key, and the saved states that have personal fields of it. Answers whether
-- there was a key. (Saved states are sealed as well, for where they are in another database.)
CREATE FUNCTION eventstore_keys.shred(_tenant text, _subject text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF has_schema_privilege('eventstore', 'USAGE')
       AND has_table_privilege('eventstore.snapshots', 'DELETE') THEN
        DELETE FROM eventstore.snapshots WHERE tenant = _tenant AND _subject = ANY (subjects);
    END IF;
    INSERT INTO eventstore_keys.subject_keys (tenant, subject, shredded_at)
    VALUES (_tenant, _subject, clock_timestamp())
    ON CONFLICT (tenant, subject) DO NOTHING;
    UPDATE eventstore_keys.subject_keys
       SET wrapped_key = NULL, master_key_id = NULL, shredded_at = clock_timestamp()
     WHERE tenant = _tenant AND subject = _subject AND wrapped_key IS NOT NULL;
    RETURN FOUND;
END
$$;

-- What an application's role needs, beside `eventstore.grant_use` for its events. It can shred, but
-- not delete the note that it did.
CREATE FUNCTION eventstore_keys.grant_use(_role name) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA eventstore, eventstore_keys TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON eventstore_keys.subject_keys TO %I', _role);
END
$$;
