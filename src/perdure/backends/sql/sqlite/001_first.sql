-- A row's id is its session's id * 2^40 plus its own id in that session: one tree finds it, and a session's rows
-- stand together. Columns that name such a row (conversation, parent, owner, document) hold the same numbers.
-- Bodies are JSON, encoded by perdure; the other columns are what they are found by.

CREATE TABLE worker (
    id TEXT NOT NULL PRIMARY KEY,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL,             -- the kernel's start time of the process, in clock ticks
    host TEXT NOT NULL,
    since REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL DEFAULT 0,
    head INTEGER NOT NULL DEFAULT 0,
    next_id INTEGER NOT NULL DEFAULT 1,
    open INTEGER NOT NULL DEFAULT 0,      -- 1 from a claim to its release: 0 is the clean-close mark
    owner TEXT,                           -- the worker of the last claim, until it is released
    began INTEGER NOT NULL DEFAULT 0,     -- the head when this epoch began
    began_before INTEGER NOT NULL DEFAULT 0  -- the head when the epoch before it began
) STRICT;
CREATE INDEX session_owner ON session (owner) WHERE owner IS NOT NULL;

CREATE TABLE "commit" (
    id INTEGER PRIMARY KEY,               -- session * 2^40 + seq
    commit_id BLOB NOT NULL
) STRICT;

CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key TEXT,
    owner INTEGER,
    parent INTEGER,
    listed INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX conversation_key ON conversation (session, key) WHERE key IS NOT NULL;
CREATE INDEX conversation_listed ON conversation (session) WHERE listed = 1;
CREATE INDEX conversation_owner ON conversation (owner) WHERE owner IS NOT NULL;
CREATE INDEX conversation_parent ON conversation (parent) WHERE parent IS NOT NULL;

CREATE TABLE entry (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,
    head INTEGER,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX entry_conversation ON entry (conversation);
CREATE INDEX entry_head ON entry (conversation) WHERE head IS NOT NULL;

CREATE TABLE task (
    id INTEGER PRIMARY KEY,
    live INTEGER NOT NULL,
    ended REAL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX task_live ON task (live) WHERE live = 1;

CREATE TABLE submission (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,
    request_id TEXT,
    live INTEGER NOT NULL,
    ended REAL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX submission_request ON submission (conversation, request_id);
CREATE INDEX submission_live ON submission (live) WHERE live = 1;

CREATE TABLE document (
    id INTEGER PRIMARY KEY,
    owner INTEGER NOT NULL,               -- of the session scope: session * 2^40
    scope TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    retired INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX document_name ON document (owner, scope, kind, key) WHERE retired = 0;
CREATE INDEX document_owner ON document (owner, scope);

CREATE TABLE base (
    document INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    prune INTEGER NOT NULL,               -- 1: no value before this one is kept
    body BLOB NOT NULL                    -- a whole value
) STRICT;
CREATE UNIQUE INDEX base_document ON base (document, seq);

CREATE TABLE delta (
    document INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    body BLOB NOT NULL                    -- operations on the value before
) STRICT;
CREATE INDEX delta_document ON delta (document, seq);

CREATE TRIGGER base_prunes AFTER INSERT ON base WHEN new.prune = 1 BEGIN
    DELETE FROM base WHERE document = new.document AND seq < new.seq;
    DELETE FROM delta WHERE document = new.document AND seq <= new.seq;
END;
CREATE TRIGGER document_removed AFTER DELETE ON document BEGIN
    DELETE FROM base WHERE document = old.id;
    DELETE FROM delta WHERE document = old.id;
END;

CREATE TABLE inbound (
    session INTEGER NOT NULL,
    id TEXT NOT NULL,
    taken INTEGER,                        -- the commit that acted on it
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX inbound_id ON inbound (session, id);
CREATE INDEX inbound_waiting ON inbound (session, id) WHERE taken IS NULL;
