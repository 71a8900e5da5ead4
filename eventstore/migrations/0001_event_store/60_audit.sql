-- Seals: a hash chain over the log in its order, made behind the writers, who know nothing of it.
--
-- An event's hash is SHA-256 of the hash before it and of its row as `record_send` writes it: each
-- column with its type and length, NULL apart from empty, instants in microseconds. A seal holds the
-- hashes of one block of events and what links it to the seal before. Whoever keeps the last seal's
-- digest elsewhere can tell whether the log, or the seals, were changed since.
CREATE TABLE eventstore.seals (
    block bigint NOT NULL,
    -- The part of the log that it covers: after one place, through the other. An event that appears
    -- between them later was not there when it was sealed.
    after_position bigint NOT NULL,
    through_position bigint NOT NULL,
    event_total bigint NOT NULL,  -- of this block and all before it
    positions bigint[] NOT NULL,
    hashes bytea NOT NULL,        -- 32 bytes for each position
    sealed_at timestamptz NOT NULL,
    digest bytea NOT NULL,        -- SHA-256 of the digest before and of all of the above
    CONSTRAINT pk_seals PRIMARY KEY (block),
    CONSTRAINT uq_seals_after_position UNIQUE (after_position),
    CONSTRAINT ck_seals_block CHECK (block >= 1),
    CONSTRAINT ck_seals_range CHECK (after_position < through_position),
    CONSTRAINT ck_seals_positions CHECK (cardinality(positions) BETWEEN 1 AND 4096),
    CONSTRAINT ck_seals_hashes CHECK (octet_length(hashes) = 32 * cardinality(positions)),
    CONSTRAINT ck_seals_digest CHECK (octet_length(digest) = 32)
);

-- hashes do not compress
ALTER TABLE eventstore.seals ALTER COLUMN hashes SET STORAGE EXTERNAL;

CREATE TRIGGER seals_are_facts
    BEFORE UPDATE OR DELETE OR TRUNCATE ON eventstore.seals
    FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();
