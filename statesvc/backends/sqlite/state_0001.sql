-- state.db, format 1: the newest state of every record, and how far the log is applied to it.
-- It can be made again from the log, as far as the log is kept.

CREATE TABLE record (
    rowid     INTEGER PRIMARY KEY,
    kind      TEXT NOT NULL,
    id        TEXT NOT NULL,
    status    TEXT,
    node      TEXT,
    owner     TEXT,
    created   INTEGER NOT NULL,     -- times are UTC nanoseconds
    updated   INTEGER NOT NULL,
    started   INTEGER,
    completed INTEGER,
    scheduled INTEGER,
    priority  ANY,
    ready     TEXT,                 -- its place in the queue; NULL unless it may be claimed
    due       INTEGER,              -- when the daemon has to look at it again
    deleted   INTEGER,              -- when it became a tombstone; NULL for a living record
    data      BLOB NOT NULL,        -- the row as the rules know it, MessagePack
    checksum  INTEGER NOT NULL      -- CRC-32 of data
) STRICT;

CREATE UNIQUE INDEX record_key ON record (kind, id);

-- The lists everybody asks for. Further sort orders get their index when they are first asked for (see state.py):
-- an index that nobody walks should not cost every write.
CREATE INDEX record_created ON record (kind, created, id) WHERE deleted IS NULL;
CREATE INDEX record_status ON record (kind, status, created, id) WHERE deleted IS NULL;
CREATE INDEX record_node ON record (kind, node, created, id) WHERE deleted IS NULL AND node IS NOT NULL;
CREATE INDEX record_owner ON record (kind, owner, created, id) WHERE deleted IS NULL AND owner IS NOT NULL;

-- What the daemon itself walks all the time. Records that have no part in it cost nothing.
CREATE INDEX record_ready ON record (kind, ready, id) WHERE deleted IS NULL AND ready IS NOT NULL;
CREATE INDEX record_due ON record (kind, due, id) WHERE deleted IS NULL AND due IS NOT NULL;
CREATE INDEX record_deleted ON record (kind, deleted, id) WHERE deleted IS NOT NULL;

-- Where in the log the entries of a record are, hidden ones left out. What the log no longer has is ignored.
CREATE TABLE history (
    record   INTEGER NOT NULL,      -- rowid of the record
    position INTEGER NOT NULL,
    PRIMARY KEY (record, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE label (
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    created INTEGER NOT NULL,
    id      TEXT NOT NULL,
    PRIMARY KEY (kind, name, value, created, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX label_record ON label (kind, id);

CREATE TABLE fact (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
