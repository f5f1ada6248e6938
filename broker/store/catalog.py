"""The catalog: definitions, which change at connect or operator rate, in SQLite.

    meta            version of this schema; the log position seen; the last position used; a sum of these two
    vhosts, exchanges, queues, sessions, policies, users, permissions
                                                number, vhost, name, definition, a sum of all that
    bindings, subscriptions                     ... and the numbers of both ends

A number is the position of the entry that defined a thing first. Names are used again, numbers are
not; so a binding knows its ends by their numbers, and what is undefined takes its bindings with it,
whatever is called like it later.

SQLite finds out when its own structure is damaged; the sums (CRC-32) find out about the rest.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from typing import Final

from broker.store.contract import Defined, StoreEntry, Undefined
from broker.store.disk import RealDisk, StoreError
from broker.store.values import dump, load
from broker.store.wal import Wal

#: Says that a file is a catalog (the file's application id).
MAGIC: Final = 0x54524C43
#: Pages that the write-ahead log keeps on disk when it starts anew.
_WAL_OCTETS: Final = 4 << 20
#: Milliseconds to wait for somebody who looks in from outside and holds a lock.
_PATIENCE_MS: Final = 5_000

#: Tables of things that stand for themselves, by the kind of their entries, and of things that lead
#: from one to another.
_THINGS: Final = {
    "vhost": "vhosts",
    "exchange": "exchanges",
    "queue": "queues",
    "session": "sessions",
    "policy": "policies",
    "user": "users",
    "permission": "permissions",
}
_WAYS: Final = {"binding": "bindings", "subscription": "subscriptions"}
_TABLES: Final = {**_THINGS, **_WAYS}

_THING: Final = """CREATE TABLE {0} (
    number INTEGER PRIMARY KEY, vhost TEXT NOT NULL, name BLOB NOT NULL, definition TEXT NOT NULL, sum INTEGER NOT NULL,
    UNIQUE (vhost, name))"""
_WAY: Final = """CREATE TABLE {0} (
    number INTEGER PRIMARY KEY, vhost TEXT NOT NULL, name BLOB NOT NULL, definition TEXT NOT NULL, sum INTEGER NOT NULL,
    source INTEGER NOT NULL, destination INTEGER NOT NULL, UNIQUE (vhost, name))"""

#: Statements that lead from each version of the schema to the next; an empty file is version 0.
#: Never change one: add.
_STEPS: Final[list[list[str]]] = [
    [
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
        f"INSERT INTO meta VALUES ('version', 0), ('seen', 0), ('last', 0), ('sum', {zlib.crc32(b'0 0')})",
        *[_THING.format(table) for table in ("vhosts", "exchanges", "queues", "sessions")],
        *[_WAY.format(table) for table in _WAYS.values()],
        "CREATE INDEX bindings_by_source ON bindings (vhost, source)",
        "CREATE INDEX bindings_by_destination ON bindings (destination)",
        "CREATE INDEX subscriptions_by_session ON subscriptions (destination)",
        f"PRAGMA application_id = {MAGIC}",
    ],
    [_THING.format(table) for table in ("policies", "users", "permissions")],
]
VERSION: Final = len(_STEPS)


#: How SQLite says that something is wrong: text that is none is damage too.
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


class CatalogError(StoreError):
    """The catalog cannot be used; the text says which file it is, what is wrong, and what can be
    done.
    """


class CatalogUnwritten(CatalogError):
    """Nothing of the batch was written, and a later try may succeed: somebody from outside holds a
    lock.
    """


class CatalogFull(CatalogUnwritten):
    """... or the disk has no room."""


class Catalog:
    """One process uses it (the lock on the data directory), one thread at a time. Opened, and made
    or brought to this version where that is needed; `known` says that there must be one. Raises
    CatalogError, as every method does.
    """

    def __init__(self, path: str, known: bool = False) -> None:
        self.path = path
        self._known = known
        #: How far the log was written when the last batch came.
        self.seen = 0
        #: The last position that any entry here had, or that the log had then.
        self.last = 0
        #: Why nothing is written any more.
        self.broken = ""
        self._vhosts: set[str] = set()
        try:
            # SQLite passes over damage there, and what was defined behind it would be gone without
            # a word.
            self.wal = Wal(RealDisk(), path + "-wal")
        except OSError as error:
            raise CatalogError(f"cannot read '{path}-wal': {error.strerror or error}") from error
        if self.wal.damage:
            raise self._damaged(f"'{path}-wal', {self.wal.damage}")
        try:
            # The thread that writes is another than the one that opens: one after the other, never
            # both.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise CatalogError(f"cannot open the catalog {path}: {error}") from error
        try:
            self._open()
        except _ERRORS as error:
            self._db.close()
            raise self._failure(error) from error
        except CatalogError:
            self._db.close()
            raise

    def _open(self) -> None:
        db = self._db
        db.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
        version = self._version()
        if version > VERSION:
            raise CatalogError(
                f"the catalog {self.path} has schema version {version}, and this broker knows up to {VERSION}: "
                "start the newer broker that wrote it, or give this one a backup of its own"
            )
        if version == 0 and self._known:
            raise CatalogError(
                f"the catalog {self.path} is missing, or empty, and without it nobody knows whose messages are in the log: "
                "put it back, from a backup perhaps; or move the log away, and all messages with it"
            )
        [found] = db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self._damaged(str(found))
        [mode] = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise CatalogError(
                f"the catalog {self.path} cannot have a write-ahead log (SQLite says '{mode}'): "
                "is its directory on a network?"
            )
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA checkpoint_fullfsync = ON")
        db.execute(f"PRAGMA journal_size_limit = {_WAL_OCTETS}")
        if version < VERSION:
            self._migrate(version)
        meta = dict(db.execute("SELECT name, value FROM meta"))
        if (
            len(meta) != 4
            or not all(isinstance(value, int) for value in meta.values())
            or meta.get("sum") != _sum(meta.get("seen"), meta.get("last"))
        ):
            raise self._damaged("its positions")
        self.seen, self.last = meta["seen"], meta["last"]

    def _version(self) -> int:
        """Of the schema in the file. Raises CatalogError for somebody else's file."""
        db = self._db
        [magic] = db.execute("PRAGMA application_id").fetchone()
        if magic == MAGIC:
            row = db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            if row is None or not isinstance(row[0], int):
                raise self._damaged("it has no schema version")
            return row[0]
        [tables] = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if magic or tables:
            raise CatalogError(f"{self.path} is a database of something else: move it away")
        return 0

    def _migrate(self, version: int) -> None:
        """All steps, or none."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        for step in _STEPS[version:]:
            for statement in step:
                db.execute(statement)
        db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (VERSION,))
        db.execute("COMMIT")

    # -- reading

    def load(self) -> Iterator[tuple[int, Defined]]:
        """All definitions with their numbers, in the order of these: nothing comes before what it
        needs.
        """
        tables = [
            f"SELECT number, '{kind}', vhost, name, definition, sum FROM {table}"
            for kind, table in _TABLES.items()
        ]
        try:
            for number, kind, vhost, name, definition, sum_ in self._db.execute(
                " UNION ALL ".join(tables) + " ORDER BY number"
            ):
                if sum_ != _sum(kind, number, vhost, name, definition):
                    raise self._damaged(f"{kind} number {number}")
                try:
                    values = load(definition)
                except ValueError as error:
                    raise self._damaged(f"{kind} number {number}: {error}") from error
                yield number, Defined(vhost, kind, name.decode("utf-8", "surrogateescape"), values)
        except _ERRORS as error:
            raise self._failure(error) from error

    # -- writing

    def write(self, changes: list[tuple[int, StoreEntry]], position: int) -> None:
        """Make (position, Defined or Undefined) entries durable, in their order, all or none; the
        log is written up to `position`. May block. Raises CatalogUnwritten, after which nothing has
        changed; after another error nothing is written any more."""
        if self.broken:
            raise CatalogError(self.broken)
        last = max(self.last, position)
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            for at, entry in changes:
                last = max(last, at)
                if isinstance(entry, Defined):
                    self._define(at, entry)
                elif isinstance(entry, Undefined):
                    self._undefine(entry.vhost, entry.kind, entry.name)
                else:
                    raise AssertionError(f"{entry!r} is no definition")
            for name, value in (("seen", position), ("last", last), ("sum", _sum(position, last))):
                db.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))
            db.execute("COMMIT")
        except BaseException as error:
            self._vhosts.clear()
            self._roll_back()
            if not isinstance(error, _ERRORS):
                raise
            failure = self._failure(error)
            if not isinstance(failure, CatalogUnwritten):
                self.broken = str(failure)
            raise failure from error
        self.seen, self.last = position, last

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self.broken = str(self._failure(error))

    def _define(self, position: int, entry: Defined) -> None:
        """A thing defined again is another one, unless its definition has the number of the one
        that is there. A binding defined again is the same: its name holds the numbers of its ends.
        """
        db, kind, table, vhost = self._db, entry.kind, _TABLES[entry.kind], entry.vhost
        name, definition = _octets(entry.name), dump(entry.definition)
        if vhost not in self._vhosts:
            octets = _octets(vhost)
            db.execute(
                "INSERT OR IGNORE INTO vhosts VALUES (?, ?, ?, ?, ?)",
                (position, vhost, octets, "{}", _sum("vhost", position, vhost, octets, "{}")),
            )
            self._vhosts.add(vhost)
        known = db.execute(
            f"SELECT number FROM {table} WHERE vhost = ? AND name = ?", (vhost, name)
        ).fetchone()
        if known is not None:
            number: int = known[0]
            if kind in _WAYS or kind == "vhost" or number == entry.definition.get("number"):
                db.execute(
                    f"UPDATE {table} SET definition = ?, sum = ? WHERE number = ?",
                    (definition, _sum(kind, number, vhost, name, definition), number),
                )
                return
            self._undefine(vhost, kind, entry.name)
        row = (position, vhost, name, definition, _sum(kind, position, vhost, name, definition))
        if kind in _WAYS:
            db.execute(
                f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, entry.definition["source"], entry.definition["destination"]),
            )
        else:
            db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", row)

    def _undefine(self, vhost: str, kind: str, name: str) -> None:
        """... and all that leads there or away from there. What is not there is gone already."""
        db, table = self._db, _TABLES[kind]
        if kind == "vhost":
            for other in _TABLES.values():
                db.execute(f"DELETE FROM {other} WHERE vhost = ?", (vhost,))
            self._vhosts.discard(vhost)
            return
        known = db.execute(
            f"SELECT number FROM {table} WHERE vhost = ? AND name = ?", (vhost, _octets(name))
        ).fetchone()
        if known is None:
            return
        db.execute(f"DELETE FROM {table} WHERE number = ?", known)
        if kind == "session":
            db.execute("DELETE FROM subscriptions WHERE destination = ?", known)
        elif kind in _THINGS:
            db.execute("DELETE FROM bindings WHERE destination = ?", known)
        if kind == "exchange":
            db.execute("DELETE FROM bindings WHERE vhost = ? AND source = ?", (vhost, *known))

    # -- the end

    def close(self) -> None:
        """What was written stays; nothing more can be."""
        self.broken = self.broken or f"the catalog {self.path} is closed"
        self._db.close()

    # -- what may be wrong

    def _failure(self, error: Exception) -> CatalogError:
        code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return CatalogFull(f"cannot write the catalog {self.path}: no room on the disk")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return CatalogUnwritten(
                f"cannot write the catalog {self.path}: another process holds a lock on it ({error})"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(
            error, UnicodeDecodeError
        ):
            return self._damaged(str(error))
        return CatalogError(f"cannot use the catalog {self.path}: {error}")

    def _damaged(self, what: str) -> CatalogError:
        return CatalogError(
            f"the catalog {self.path} is damaged ({what}): put a backup in its place; the file can also be moved away, "
            "but then all definitions are gone, and what waits in the log for their queues with them"
        )


def _octets(name: str) -> bytes:
    """A routing key may hold octets that are no UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def _sum(*fields: object) -> int:
    return zlib.crc32(" ".join([str(field) for field in fields]).encode("utf-8", "surrogateescape"))
