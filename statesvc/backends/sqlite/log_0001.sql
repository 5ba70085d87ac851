-- log.db, format 1: what was committed, in the order it was committed. Append-only; one row a commit.

CREATE TABLE batch (
    first   INTEGER PRIMARY KEY,    -- position of its first entry; the next batch begins right behind its last
    entries INTEGER NOT NULL,
    payload BLOB NOT NULL,          -- the entries, MessagePack
    digest  BLOB NOT NULL           -- over the digest before it and this row: the chain
) STRICT;

CREATE TABLE fact (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
