-- log.db, format 1: what was committed, in the order it was committed. Appended at its end, cut at its front; one row a
-- commit. The payload comes last: what stands before it is read without it.

CREATE TABLE batch (
    first   INTEGER PRIMARY KEY,    -- position of its first entry; the next batch begins right behind its last
    entries INTEGER NOT NULL,
    visible INTEGER NOT NULL,       -- position of the newest entry up to the end of this batch that is not hidden
    at      INTEGER NOT NULL,       -- time of its newest event
    back    INTEGER NOT NULL,       -- 1 when that is earlier than the batch before: the clock went back
    total   INTEGER NOT NULL,       -- bytes of payload up to the end of this batch, since the log began
    digest  BLOB NOT NULL,          -- over the digest before it and this row: the chain
    payload BLOB NOT NULL           -- the entries, MessagePack
) STRICT;

-- What was committed before such a batch is at least as old, whatever the clock said then. Nearly always empty.
CREATE INDEX batch_back ON batch (at) WHERE back;

CREATE TABLE fact (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
