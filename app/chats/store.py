"""Chats as they are kept: an SQLite file with full-text search. One thread at a time; knows no network and no Qt.

A file that is broken is moved aside whole, and what can still be read of it is taken over. Whatever is deleted can be
brought back for KEPT_DELETED_S, and is then gone for good.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

from app.chats import schema
from app.chats.faults import ChatsBusy, ChatsError, ChatsUnreadable
from app.chats.model import (
    MARK_BEGIN,
    MARK_END,
    Chat,
    Conversation,
    File,
    Found,
    Listed,
    Message,
    Preset,
    renewed,
    sampling_from,
    stats_from,
    whole,
)
from app.pages.chat.transcript.model import Role
from app.words import translate

# Another process that writes does so for less than this.
_BUSY_TIMEOUT_S = 5.0

# One that has kept us waiting for that long has the file for itself: until it lets go, nothing waits for it again.
_BUSY_AGAIN_S = 0.05

# Long enough for anyone who wants something back, short enough that deleted means deleted.
KEPT_DELETED_S = 3600.0

# More than a person looks through.
MAX_FOUND = 200

_SNIPPET_WORDS = 12

_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSED = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}
)
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

# `leaf` and `updated` change with messages alone.
_CHANGED_FIELDS = ("title", "is_named", "pinned", "system", "sampling", "model", "draft")
_CONVERSATION_FIELDS = (*_CHANGED_FIELDS, "updated", "leaf")


class Store:
    """The chats of one file. `notice` is a sentence for the user where opening it was not as usual, else ""."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Opens the file, or makes it. Raises ChatsError or ChatsUnreadable."""
        self._path, self._clock = path, clock
        self._is_locked = False
        self.notice = ""
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._db = _opened(path)
            except sqlite3.DatabaseError as error:
                if not _is_broken(error):
                    raise
                self._begin_anew()
            self._forget_deleted()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def take_notice(self) -> str:
        """`notice`, once."""
        notice, self.notice = self.notice, ""
        return notice

    # Conversations.

    def listed(self) -> list[Listed]:
        """All that have a message, pinned ones first, then the latest."""
        rows = self._read(
            "SELECT id, title, pinned, updated FROM conversations WHERE deleted IS NULL AND leaf IS NOT NULL "
            "ORDER BY pinned DESC, updated DESC"
        )
        return [Listed(id=row[0], title=row[1], pinned=bool(row[2]), updated=row[3]) for row in rows]

    def chat(self, conversation_id: str) -> Chat:
        """Raises ChatsError where there is none."""
        with _told(self._path):
            self._db.row_factory = sqlite3.Row
            try:
                return self._chat(conversation_id)
            finally:
                self._db.row_factory = None

    def unsent(self) -> Conversation | None:
        """The latest conversation that nothing was sent in yet, and that has a draft."""
        rows = self._read(
            "SELECT id FROM conversations WHERE deleted IS NULL AND leaf IS NULL AND (draft != '' OR EXISTS "
            "(SELECT 1 FROM files WHERE files.conversation = conversations.id)) ORDER BY updated DESC LIMIT 1"
        )
        return self.chat(rows[0][0]).conversation if rows else None

    def keep(self, conversation: Conversation) -> None:
        """Make it, or change it; of one that is there, messages, files, `leaf` and `updated` stay as they are."""
        values = _conversation_values(conversation)
        changes = ", ".join(f"{name} = excluded.{name}" for name in _CHANGED_FIELDS)
        with self._writing() as db:
            db.execute(
                f"INSERT INTO conversations (id, created, {', '.join(_CONVERSATION_FIELDS)}) "
                f"VALUES (?, ?{', ?' * len(_CONVERSATION_FIELDS)}) ON CONFLICT (id) DO UPDATE SET {changes}",
                (conversation.id, conversation.created, *values),
            )

    def keep_draft_files(self, conversation_id: str, files: Sequence[File]) -> None:
        """These are attached to what is not sent yet, and no others."""
        with self._writing() as db:
            db.execute("DELETE FROM files WHERE conversation = ? AND message IS NULL", (conversation_id,))
            _add_files(db, conversation_id, None, files)

    def delete(self, conversation_id: str) -> None:
        with self._writing() as db:
            db.execute("UPDATE conversations SET deleted = ? WHERE id = ?", (self._clock(), conversation_id))
        self._forget_deleted()

    def restore(self, conversation_id: str) -> None:
        with self._writing() as db:
            db.execute("UPDATE conversations SET deleted = NULL WHERE id = ?", (conversation_id,))

    # Messages.

    def add(self, conversation_id: str, *messages: Message) -> None:
        """The last of them is shown from now on, and nothing of them is a draft any more."""
        with self._writing() as db:
            for message in messages:
                _add_message(db, conversation_id, message)
            if messages:
                db.execute(
                    "UPDATE conversations SET leaf = ?, updated = ? WHERE id = ?",
                    (messages[-1].id, self._clock(), conversation_id),
                )

    def change_answer(self, message: Message) -> None:
        """Its text, reasoning, note and stats are these now."""
        with self._writing() as db:
            db.execute(
                "UPDATE messages SET text = ?, reasoning = ?, reasoning_s = ?, note = ?, stats = ?, model = ? "
                "WHERE id = ?",
                (
                    message.text,
                    message.reasoning,
                    message.reasoning_s,
                    message.note,
                    _stats_text(message),
                    message.model,
                    message.id,
                ),
            )

    def show(self, conversation_id: str, leaf: str | None) -> None:
        """Another version is shown from now on."""
        with self._writing() as db:
            db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation_id))

    def delete_messages(self, conversation_id: str, ids: Iterable[str], leaf: str | None) -> None:
        now = self._clock()
        with self._writing() as db:
            db.executemany("UPDATE messages SET deleted = ? WHERE id = ?", [(now, one) for one in ids])
            db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation_id))

    def restore_messages(self, conversation_id: str, ids: Iterable[str], leaf: str | None) -> None:
        with self._writing() as db:
            db.executemany("UPDATE messages SET deleted = NULL WHERE id = ?", [(one,) for one in ids])
            db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation_id))

    # Search.

    def search(self, text: str) -> list[Found]:
        """Conversations with all words in the title or in one message, the last perhaps only begun; latest first.

        Signs alone, which are in no index, are looked for as they are.
        """
        if not text.strip():
            return [Found(**asdict(one)) for one in self.listed()]
        if not (query := _query(text)):
            return self._with_signs(text.strip())
        listed = (
            "FROM {} JOIN conversations c ON {} WHERE {} MATCH ? AND c.deleted IS NULL AND c.leaf IS NOT NULL"
        )
        titles = self._read(
            "SELECT c.id, c.title, c.pinned, c.updated "
            + listed.format("found_titles", "c.number = found_titles.rowid", "found_titles")
            + " ORDER BY c.updated DESC LIMIT ?",
            (query, MAX_FOUND),
        )
        # A snippet is made of a message each time that the row is looked at: only of the latest of each conversation.
        texts = self._read(
            "WITH hits AS (SELECT max(m.number) AS number, c.id, c.title, c.pinned, c.updated "
            + listed.format(
                "found_texts JOIN messages m ON m.number = found_texts.rowid",
                "c.id = m.conversation",
                "found_texts",
            )
            + " AND m.deleted IS NULL GROUP BY c.id ORDER BY c.updated DESC LIMIT ?) "
            "SELECT hits.id, hits.title, hits.pinned, hits.updated, "
            f"snippet(found_texts, 0, ?, ?, '…', {_SNIPPET_WORDS}) "
            "FROM found_texts JOIN hits ON hits.number = found_texts.rowid WHERE found_texts MATCH ?",
            (query, MAX_FOUND, MARK_BEGIN, MARK_END, query),
        )
        found = {row[0]: _found(*row) for row in titles}
        found.update((row[0], _found(*row)) for row in texts)
        return sorted(found.values(), key=lambda one: one.updated, reverse=True)[:MAX_FOUND]

    def _with_signs(self, signs: str) -> list[Found]:
        rows = self._read(
            "SELECT id, title, pinned, updated FROM conversations c WHERE deleted IS NULL AND leaf IS NOT NULL AND "
            "(instr(title, ?1) OR EXISTS (SELECT 1 FROM messages m WHERE m.conversation = c.id AND m.deleted IS NULL "
            "AND instr(m.text, ?1))) ORDER BY updated DESC LIMIT ?2",
            (signs, MAX_FOUND),
        )
        return [_found(*row) for row in rows]

    # Presets.

    def presets(self) -> list[Preset]:
        return [
            Preset(name=name, system=system)
            for name, system in self._read("SELECT name, system FROM presets ORDER BY name COLLATE NOCASE")
        ]

    def keep_preset(self, preset: Preset) -> None:
        with self._writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO presets (name, system) VALUES (?, ?)", (preset.name, preset.system)
            )

    def delete_preset(self, name: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM presets WHERE name = ?", (name,))

    # Import and export.

    def chats(self) -> Iterator[Chat]:
        """All that are listed."""
        for listed in self.listed():
            yield self.chat(listed.id)

    def all_chats(self) -> list[Chat]:
        return list(self.chats())

    def take_in(self, chats: Sequence[Chat]) -> None:
        """Whole conversations, all or none of them; what is there already comes in beside itself."""
        with self._writing() as db:
            for chat in (renewed(chat) if _is_there(db, chat) else chat for chat in chats):
                conversation = chat.conversation
                db.execute(
                    f"INSERT INTO conversations (id, created, {', '.join(_CONVERSATION_FIELDS)}) "
                    f"VALUES (?, ?{', ?' * len(_CONVERSATION_FIELDS)})",
                    (conversation.id, conversation.created, *_conversation_values(conversation)),
                )
                for message in chat.messages:
                    _add_message(db, conversation.id, message)
                _add_files(db, conversation.id, None, conversation.draft_files)

    # Within.

    def _chat(self, conversation_id: str) -> Chat:
        found = self._db.execute(
            "SELECT * FROM conversations WHERE id = ? AND deleted IS NULL", (conversation_id,)
        ).fetchone()
        if found is None:
            raise ChatsError(translate("Chats", "That conversation is not there any more."))
        files: dict[str | None, list[File]] = {}
        for row in self._db.execute(
            "SELECT * FROM files WHERE conversation = ? ORDER BY number", (conversation_id,)
        ):
            files.setdefault(row["message"], []).append(_file(row))
        messages = tuple(
            _message(row, tuple(files.get(row["id"], ())))
            for row in self._db.execute(
                "SELECT * FROM messages WHERE conversation = ? AND deleted IS NULL ORDER BY number",
                (conversation_id,),
            )
        )
        return Chat(conversation=_conversation(found, tuple(files.get(None, ()))), messages=messages)

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with _told(self._path):
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. Raises ChatsError; then nothing of it has been done."""
        with _told(self._path):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error) and _code(error) in _LOCKED:
                    self._be_locked(True)
                raise
            self._be_locked(False)

    def _be_locked(self, is_locked: bool) -> None:
        if is_locked != self._is_locked:
            self._is_locked = is_locked
            wait_s = _BUSY_AGAIN_S if is_locked else _BUSY_TIMEOUT_S
            self._db.execute(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")

    def _forget_deleted(self) -> None:
        """What was deleted long ago goes for good; what cannot be written now goes another time."""
        before = self._clock() - KEPT_DELETED_S
        with contextlib.suppress(ChatsError), self._writing() as db:
            db.execute("DELETE FROM conversations WHERE deleted < ?", (before,))
            db.execute("DELETE FROM messages WHERE deleted < ?", (before,))

    def _begin_anew(self) -> None:
        """The file is broken: keep it under another name, and take over what can be read of it."""
        aside = _free_name(self._path, self._clock())
        for ending in ("", "-wal", "-shm"):
            part = self._path.with_name(self._path.name + ending)
            if part.exists():
                part.rename(aside.with_name(aside.name + ending))
        self._db = _opened(self._path)
        n_saved = _take_over(aside, self._db)
        if n_saved:
            words = translate(
                "Chats",
                "The file of your chats was damaged. It is kept as {0} in {1}, and {2} of its conversations could be "
                "read.",
            )
        else:
            words = translate(
                "Chats",
                "The file of your chats was damaged. It is kept as {0} in {1}, and nothing of it could be read.",
            )
        self.notice = words.format(aside.name, aside.parent, n_saved)


class _Connection(sqlite3.Connection):
    """One that takes any text of Python's: half of a surrogate pair, which is no text in UTF-8, is kept as "�"."""

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        return super().execute(sql, [whole(value) for value in values])

    def executemany(self, sql: str, values: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, ([whole(one) for one in row] for row in values))


def _opened(path: Path) -> sqlite3.Connection:
    """At the newest version. Raises sqlite3.Error, or ChatsUnreadable for one that is newer still."""
    # Whoever has this connection keeps to one thread at a time.
    connection = sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, factory=_Connection
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # With less, a power cut would take what was written since the last checkpoint, which may be minutes ago.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        if (version := schema.version_of(connection)) > schema.VERSION:
            raise ChatsUnreadable(
                translate(
                    "Chats",
                    "Your chats were last opened by a newer Baton (their version is {0}, this one reads {1}). Update "
                    "Baton to see them; nothing was changed.",
                ).format(version, schema.VERSION)
            )
        schema.migrate(connection)
        if (fault := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise _broken(fault)
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _broken(fault: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(fault)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_broken(error: sqlite3.Error) -> bool:
    return _code(error) in _BROKEN


def _code(error: sqlite3.Error) -> int:
    """The primary code; 0 where Python gives none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors, and those of files, as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _as_ours(error, path) from error
    except OSError as error:
        raise ChatsUnreadable(
            translate("Chats", "Your chats in {0} cannot be opened: {1}.").format(path, error.strerror)
        ) from error


def _as_ours(error: sqlite3.Error, path: Path) -> ChatsError:
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return ChatsBusy(
            translate(
                "Chats",
                "The disk is full, so that this chat cannot be kept. Free some space; what you see is still here.",
            )
        )
    if code in _LOCKED:
        return ChatsBusy(
            translate(
                "Chats", "Another program is using {}, the file of your chats. Close it and try again."
            ).format(path.name)
        )
    if code in _REFUSED:
        return ChatsUnreadable(
            translate(
                "Chats", "Your chats in {} cannot be opened. See that the file and its folder may be written."
            ).format(path)
        )
    if code in _BROKEN:
        return ChatsError(
            translate(
                "Chats",
                "The file of your chats is damaged. Start Baton again: it keeps the file and saves what it can.",
            )
        )
    return ChatsError(
        translate("Chats", "Your chats in {0} could not be read or written: {1}.").format(path, error)
    )


def _free_name(path: Path, now: float) -> Path:
    day = time.strftime("%Y-%m-%d-%H%M%S", time.localtime(now))
    number, name = 1, path.with_name(f"{path.stem}-damaged-{day}{path.suffix}")
    while name.exists():
        number += 1
        name = path.with_name(f"{path.stem}-damaged-{day}-{number}{path.suffix}")
    return name


def _take_over(aside: Path, into: sqlite3.Connection) -> int:
    """Copy each row that can still be read; how many conversations there are then."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(aside)) as broken:
        into.execute("PRAGMA foreign_keys = OFF")
        for table in ("conversations", "messages", "files", "presets"):
            with contextlib.suppress(sqlite3.Error):
                _copy_rows(table, broken, into)
        into.execute("DELETE FROM messages WHERE conversation NOT IN (SELECT id FROM conversations)")
        into.execute("DELETE FROM files WHERE conversation NOT IN (SELECT id FROM conversations)")
    into.execute("PRAGMA foreign_keys = ON")
    return int(into.execute("SELECT count(*) FROM conversations WHERE leaf IS NOT NULL").fetchone()[0])


def _copy_rows(table: str, broken: sqlite3.Connection, into: sqlite3.Connection) -> None:
    known = {row[1] for row in into.execute(f"PRAGMA table_info({table})")}
    rows = broken.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in rows.description]
    kept = [index for index, name in enumerate(names) if name in known]
    insert = (
        f"INSERT OR IGNORE INTO {table} ({', '.join(names[index] for index in kept)}) "
        f"VALUES ({', '.join('?' * len(kept))})"
    )
    while (row := rows.fetchone()) is not None:
        with contextlib.suppress(sqlite3.IntegrityError):
            into.execute(insert, [row[index] for index in kept])


def _query(text: str) -> str:
    """What FTS5 is asked: all words, the last as a beginning. Whatever the user types is no syntax."""
    words = "".join(
        letter if letter.isalnum() else " " for letter in unicodedata.normalize("NFC", text)
    ).split()
    return " ".join([*(f'"{word}"' for word in words[:-1]), *(f'"{word}"*' for word in words[-1:])])


def _conversation_values(conversation: Conversation) -> tuple[Any, ...]:
    return (
        conversation.title,
        conversation.is_named,
        conversation.pinned,
        conversation.system,
        json.dumps(conversation.sampling.wishes()),
        conversation.model,
        conversation.draft,
        conversation.updated,
        conversation.leaf,
    )


def _conversation(row: sqlite3.Row, draft_files: tuple[File, ...]) -> Conversation:
    return Conversation(
        id=row["id"],
        created=row["created"],
        updated=row["updated"],
        title=row["title"],
        is_named=bool(row["is_named"]),
        pinned=bool(row["pinned"]),
        system=row["system"],
        sampling=sampling_from(_json(row["sampling"])),
        model=row["model"],
        leaf=row["leaf"],
        draft=row["draft"],
        draft_files=draft_files,
    )


def _message(row: sqlite3.Row, files: tuple[File, ...]) -> Message:
    return Message(
        id=row["id"],
        parent=row["parent"],
        role=cast(Role, row["role"]),
        text=row["text"],
        created=row["created"],
        reasoning=row["reasoning"],
        reasoning_s=row["reasoning_s"],
        note=row["note"],
        model=row["model"],
        files=files,
        stats=stats_from(_json(row["stats"])),
    )


def _file(row: sqlite3.Row) -> File:
    return File(
        id=row["id"], name=row["name"], text=row["text"], n_bytes=row["n_bytes"], n_tokens=row["n_tokens"]
    )


def _found(id_: str, title: str, pinned: int, updated: float, snippet: str = "") -> Found:
    return Found(id=id_, title=title, pinned=bool(pinned), updated=updated, snippet=snippet)


def _add_message(db: sqlite3.Connection, conversation_id: str, message: Message) -> None:
    db.execute(
        "INSERT INTO messages (id, conversation, parent, role, text, reasoning, reasoning_s, note, model, stats, "
        "created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            message.id,
            conversation_id,
            message.parent,
            message.role,
            message.text,
            message.reasoning,
            message.reasoning_s,
            message.note,
            message.model,
            _stats_text(message),
            message.created,
        ),
    )
    _add_files(db, conversation_id, message.id, message.files)


def _add_files(
    db: sqlite3.Connection, conversation_id: str, message_id: str | None, files: Iterable[File]
) -> None:
    """A file that was a draft's until now is the message's."""
    db.executemany(
        "INSERT INTO files (id, conversation, message, name, text, n_bytes, n_tokens) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET message = excluded.message, n_tokens = excluded.n_tokens",
        [
            (file.id, conversation_id, message_id, file.name, file.text, file.n_bytes, file.n_tokens)
            for file in files
        ],
    )


def _is_there(db: sqlite3.Connection, chat: Chat) -> bool:
    """Whether any of it has an id that is taken."""
    files = [*chat.conversation.draft_files, *(file for message in chat.messages for file in message.files)]
    wanted = {
        "conversations": [chat.conversation.id],
        "messages": [message.id for message in chat.messages],
        "files": [file.id for file in files],
    }
    return any(
        db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (id_,)).fetchone()
        for table, ids in wanted.items()
        for id_ in ids
    )


def _stats_text(message: Message) -> str | None:
    return json.dumps(asdict(message.stats)) if message.stats is not None else None


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
