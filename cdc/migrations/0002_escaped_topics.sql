-- Tables of a source whose names are escaped in their topics; see cdc.topic_names. Earlier releases made
-- this table with its first row.
CREATE TABLE IF NOT EXISTS headwater.escaped_topics (
    source text,
    table_schema text,
    table_name text,
    PRIMARY KEY (source, table_schema, table_name)
);
