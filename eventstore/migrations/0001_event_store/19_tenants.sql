-- A tenant's rows are seen and written by its own sessions only. The owner of the tables, who runs
-- migrations, compaction and the platform's capture, is not held by this.

-- Logins that belong to one tenant for good; all others say which tenant they act for.
CREATE TABLE eventstore.tenant_roles (
    role name NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    CONSTRAINT pk_tenant_roles PRIMARY KEY (role)
);

CREATE FUNCTION eventstore.current_tenant() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(
        (SELECT tenant FROM eventstore.tenant_roles WHERE role = session_user),
        current_setting('eventstore.tenant', true))
$$;

-- Holds one table to the session's tenant.
CREATE FUNCTION eventstore.hold_to_tenant(_table regclass) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', _table);
    EXECUTE format('CREATE POLICY tenant ON %s USING (tenant = (SELECT eventstore.current_tenant()))',
                   _table);
END
$$;

SELECT eventstore.hold_to_tenant(held::regclass)
  FROM unnest(ARRAY['eventstore.events', 'eventstore.archived_events', 'eventstore.event_tags',
                    'eventstore.idempotency_keys', 'eventstore.snapshots', 'eventstore.outbox'])
       AS t(held);

-- What an application's role needs: to append and read, never to change or delete an event.
CREATE FUNCTION eventstore.grant_use(_role name) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA eventstore TO %I', _role);
    EXECUTE format('GRANT USAGE, SELECT ON SEQUENCE eventstore.global_position TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT ON eventstore.events, eventstore.event_tags, '
                   'eventstore.idempotency_keys TO %I', _role);
    EXECUTE format('GRANT SELECT ON eventstore.archived_events, eventstore.log, '
                   'eventstore.writers_under_way TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON eventstore.snapshots TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT, DELETE ON eventstore.outbox TO %I', _role);
END
$$;
