"""The tables of the chats' database, as steps from each version to the next. A step never changes again."""

from __future__ import annotations

import sqlite3

_CONVERSATIONS = """
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL DEFAULT '',
    is_named INTEGER NOT NULL DEFAULT 0,
    pinned INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    system TEXT NOT NULL DEFAULT '',
    sampling TEXT NOT NULL DEFAULT '{}',
    model TEXT NOT NULL DEFAULT '',
    leaf TEXT,
    draft TEXT NOT NULL DEFAULT '',
    deleted REAL
);
CREATE INDEX conversations_listed ON conversations (updated DESC) WHERE deleted IS NULL;
CREATE TABLE messages (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    parent TEXT,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    reasoning TEXT NOT NULL DEFAULT '',
    reasoning_s REAL,
    note TEXT NOT NULL DEFAULT '',
    model TEXT NOT NULL DEFAULT '',
    stats TEXT,
    created REAL NOT NULL,
    deleted REAL
);
CREATE INDEX messages_of ON messages (conversation, number);
CREATE TABLE files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    message TEXT REFERENCES messages (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    n_bytes INTEGER NOT NULL,
    n_tokens INTEGER
);
CREATE INDEX files_of ON files (conversation, number);
CREATE INDEX files_with ON files (message);
"""

# What is written is found by the words in it: an index of its own, which triggers keep up with the table.
_FOUND = """
CREATE VIRTUAL TABLE found_{column}s USING fts5 (
    {column}, content='{table}', content_rowid='number', tokenize='unicode61 remove_diacritics 2', prefix='2 3'
);
CREATE TRIGGER {column}s_added AFTER INSERT ON {table} BEGIN
    INSERT INTO found_{column}s (rowid, {column}) VALUES (new.number, new.{column});
END;
CREATE TRIGGER {column}s_removed AFTER DELETE ON {table} BEGIN
    INSERT INTO found_{column}s (found_{column}s, rowid, {column}) VALUES ('delete', old.number, old.{column});
END;
CREATE TRIGGER {column}s_changed AFTER UPDATE OF {column} ON {table} BEGIN
    INSERT INTO found_{column}s (found_{column}s, rowid, {column}) VALUES ('delete', old.number, old.{column});
    INSERT INTO found_{column}s (rowid, {column}) VALUES (new.number, new.{column});
END;
INSERT INTO found_{column}s (found_{column}s) VALUES ('rebuild');
"""

_SEARCH_AND_PRESETS = (
    _FOUND.format(table="conversations", column="title")
    + _FOUND.format(table="messages", column="text")
    + "CREATE TABLE presets (name TEXT PRIMARY KEY, system TEXT NOT NULL);"
)

# The first leads from nothing to version 1.
STEPS = (_CONVERSATIONS, _SEARCH_AND_PRESETS)

VERSION = len(STEPS)


def version_of(connection: sqlite3.Connection) -> int:
    """0 of a database that has nothing in it yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, to: int = VERSION) -> None:
    """Bring a database to a version, each step whole or not at all."""
    for version in range(version_of(connection), to):
        # A script ends whatever transaction is open, so that it has to bring its own.
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {STEPS[version]} PRAGMA user_version = {version + 1}; COMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise
