"""The catalog: the durable definitions, in SQLite.

Definitions change when clients connect or operators act, not with each message.

    table                                   columns
    meta                                    schema version; log position at the last write (seen);
                                            last position used; checksum of these two (sum)
    vhosts, exchanges, queues, sessions,
    policies, users, permissions            number, vhost, name, definition, checksum (sum)
    bindings, subscriptions                 the same columns, and the numbers of source and
                                            destination
    replica                                 the state of a node of a cluster; checksum

The number of an object is the position of the entry that first defined it. A name can be used
again, a number cannot. So bindings refer to numbers: the removal of a queue removes its bindings,
and a queue that is declared with the same name later does not get them.

SQLite detects damage to its own structure; the checksums (CRC-32) detect damage to values.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from typing import Final

from broker.store.disk import RealDisk, StoreError, create_private
from broker.store.entries import Defined, StoreEntry, Undefined
from broker.store.values import dump, load
from broker.store.wal import WalCheck

#: SQLite's application id of a catalog file.
MAGIC: Final = 0x54524C43
#: Size in bytes to which SQLite truncates its write-ahead log when the log is restarted.
_WAL_SIZE_MAX: Final = 4 << 20
#: Time to wait for another process that holds a lock on the catalog, in ms.
_LOCK_TIMEOUT_MS: Final = 5_000

#: Tables of objects, by kind of definition, and tables of links from a source to a destination.
_OBJECT_TABLES: Final = {
    "vhost": "vhosts",
    "exchange": "exchanges",
    "queue": "queues",
    "session": "sessions",
    "policy": "policies",
    "user": "users",
    "permission": "permissions",
    "role": "roles",
    "parameter": "parameters",
}
_LINK_TABLES: Final = {"binding": "bindings", "subscription": "subscriptions"}
_TABLES: Final = {**_OBJECT_TABLES, **_LINK_TABLES}

_OBJECT_SQL: Final = """CREATE TABLE {0} (
    number INTEGER PRIMARY KEY, vhost TEXT NOT NULL, name BLOB NOT NULL, definition TEXT NOT NULL,
    sum INTEGER NOT NULL, UNIQUE (vhost, name))"""
_LINK_SQL: Final = """CREATE TABLE {0} (
    number INTEGER PRIMARY KEY, vhost TEXT NOT NULL, name BLOB NOT NULL, definition TEXT NOT NULL,
    sum INTEGER NOT NULL, source INTEGER NOT NULL, destination INTEGER NOT NULL,
    UNIQUE (vhost, name))"""

#: Statements that migrate each version of the schema to the next. An empty file has version 0.
#: Never change a list of statements: add a new list.
_STEPS: Final[list[list[str]]] = [
    [
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
        "INSERT INTO meta VALUES ('version', 0), ('seen', 0), ('last', 0)",
        f"INSERT INTO meta VALUES ('sum', {zlib.crc32(b'0 0')})",
        *[_OBJECT_SQL.format(table) for table in ("vhosts", "exchanges", "queues", "sessions")],
        *[_LINK_SQL.format(table) for table in _LINK_TABLES.values()],
        "CREATE INDEX bindings_by_source ON bindings (vhost, source)",
        "CREATE INDEX bindings_by_destination ON bindings (destination)",
        "CREATE INDEX subscriptions_by_session ON subscriptions (destination)",
        f"PRAGMA application_id = {MAGIC}",
    ],
    [_OBJECT_SQL.format(table) for table in ("policies", "users", "permissions")],
    [_OBJECT_SQL.format("parameters")],
    ["CREATE TABLE replica (state BLOB NOT NULL, sum INTEGER NOT NULL)"],
    [_OBJECT_SQL.format("roles")],
]
VERSION: Final = len(_STEPS)


#: Errors that a read of the catalog raises: UnicodeDecodeError means that a text is damaged.
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


class CatalogError(StoreError):
    """Raised if an operation on the catalog fails. The text names the file and a remedy."""


class CatalogUnwritten(CatalogError):
    """Raised if a write to the catalog fails, and can be repeated.

    The reason is a lock of another process, no free file descriptor, or a full disk (CatalogFull).
    """


class CatalogFull(CatalogUnwritten):
    """Raised if the disk is too full for a write to the catalog. The write can be repeated."""


class Catalog:
    """An open catalog. All methods may raise CatalogError.

    The constructor creates or migrates the file if needed. `known` is True if the
    data directory has a log: then a missing or empty catalog is an error. The lock on the data
    directory excludes other brokers. One thread at a time may use the catalog.
    """

    def __init__(self, path: str, known: bool = False) -> None:
        self.path = path
        self._known = known
        #: The last position in the log when the catalog was last written.
        self.log_position = 0
        #: The highest position of an entry in the catalog or the log when the catalog was last
        #: written.
        self.last = 0
        #: The state of a node of a cluster (broker/replication), as it was written last; empty if
        #: this directory belongs to no cluster.
        self.replica_state = b""
        #: The reason for which the catalog refuses writes; empty if it accepts writes.
        self.broken = ""
        self._vhosts: set[str] = set()
        try:
            # SQLite ignores damaged frames and all frames after them without an error.
            self.wal = WalCheck(RealDisk(), path + "-wal")
        except OSError as unread:
            raise CatalogError(f"cannot read '{path}-wal': {unread.strerror or unread}") from unread
        if self.wal.damage:
            raise self._damage_error(f"its write-ahead log '{path}-wal': {self.wal.damage}")
        # Create the file as private: SQLite gives the write-ahead log the same permissions.
        create_private(path)
        try:
            # One thread opens the database and another thread writes it later, never both at the
            # same time.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as unopened:
            raise CatalogError(f"cannot open the catalog {path}: {unopened}") from unopened
        try:
            self._open()
        except _ERRORS as error:
            self._db.close()
            raise self._error(error) from error
        except CatalogError:
            self._db.close()
            raise

    def _open(self) -> None:
        db = self._db
        db.execute(f"PRAGMA busy_timeout = {_LOCK_TIMEOUT_MS}")
        version = self._version()
        if version > VERSION:
            raise CatalogError(
                f"the catalog {self.path} has schema version {version}, and this broker knows only"
                f" versions up to {VERSION}: start the newer broker that wrote it, or restore a"
                " backup that this version made"
            )
        if version == 0 and self._known:
            raise CatalogError(
                f"the catalog {self.path} is missing or empty, and without it the messages in the"
                " log have no queues: restore the catalog, for example from a backup, or move the"
                " log directory away, which discards all messages"
            )
        [verdict] = db.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise self._damage_error(str(verdict))
        [mode] = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise CatalogError(
                f"the catalog {self.path} cannot have a write-ahead log (SQLite uses the journal "
                f"mode '{mode}'): move the data directory to a local disk"
            )
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA checkpoint_fullfsync = ON")
        db.execute(f"PRAGMA journal_size_limit = {_WAL_SIZE_MAX}")
        if version < VERSION:
            self._migrate(version)
        meta = dict(db.execute("SELECT name, value FROM meta"))
        if (
            len(meta) != 4
            or not all(isinstance(value, int) for value in meta.values())
            or meta.get("sum") != _checksum(meta.get("seen"), meta.get("last"))
        ):
            raise self._damage_error("the log positions in the table meta are invalid")
        self.log_position, self.last = meta["seen"], meta["last"]
        for state, sum_ in db.execute("SELECT state, sum FROM replica"):
            if not isinstance(state, bytes) or sum_ != zlib.crc32(state):
                raise self._damage_error("the state of the node in the table replica is invalid")
            self.replica_state = state

    def _version(self) -> int:
        """Return the schema version, 0 for an empty file.

        Raises CatalogError if the file is not a catalog.
        """
        db = self._db
        [magic] = db.execute("PRAGMA application_id").fetchone()
        if magic == MAGIC:
            row = db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            if row is None or not isinstance(row[0], int):
                raise self._damage_error("it has no schema version")
            return row[0]
        [tables] = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if magic or tables:
            raise CatalogError(f"{self.path} is not a catalog of Trellis: move this file away")
        return 0

    def _migrate(self, version: int) -> None:
        """Migrate the schema from `version` to VERSION, in one transaction."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        for step in _STEPS[version:]:
            for statement in step:
                db.execute(statement)
        db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (VERSION,))
        db.execute("COMMIT")

    # -- reading

    def load(self) -> Iterator[tuple[int, Defined]]:
        """Yield (number, definition) for all definitions, by ascending number.

        So an object comes before the bindings that refer to it.
        """
        tables = [
            f"SELECT number, '{kind}', vhost, name, definition, sum FROM {table}"
            for kind, table in _TABLES.items()
        ]
        try:
            for number, kind, vhost, name, definition, sum_ in self._db.execute(
                " UNION ALL ".join(tables) + " ORDER BY number"
            ):
                if sum_ != _checksum(kind, number, vhost, name, definition):
                    raise self._damage_error(
                        f"the {kind} with number {number} has a wrong checksum"
                    )
                try:
                    values = load(definition)
                except ValueError as invalid:
                    reason = f"the {kind} with number {number} is invalid: {invalid}"
                    raise self._damage_error(reason) from invalid
                yield number, Defined(vhost, kind, name.decode("utf-8", "surrogateescape"), values)
        except _ERRORS as error:
            raise self._error(error) from error

    # -- renaming, for repairs

    def rename(self, number: int, kind: str, name: str) -> None:
        """Give an object another name, in a transaction of its own.

        Bindings refer to the number of the object, so they stay valid. The caller must hold the
        lock on the data directory.
        """
        table, db = _OBJECT_TABLES[kind], self._db
        try:
            row = db.execute(
                f"SELECT vhost, definition FROM {table} WHERE number = ?", (number,)
            ).fetchone()
            vhost, definition = row
            name_bytes = _encode_name(name)
            db.execute(
                f"UPDATE {table} SET name = ?, sum = ? WHERE number = ?",
                (name_bytes, _checksum(kind, number, vhost, name_bytes, definition), number),
            )
        except _ERRORS as error:
            raise self._error(error) from error

    # -- writing

    def write(
        self, changes: list[tuple[int, StoreEntry]], position: int, replica_state: bytes = b""
    ) -> None:
        """Make entries durable in one transaction. May block.

        `changes` has (position, Defined or Undefined) pairs; `position` is the last position in the
        log; `replica_state`, unless empty, replaces the state of a node of a cluster. After
        CatalogUnwritten, nothing has changed and the write can be repeated. After another error,
        the catalog refuses further writes.
        """
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
            for name, value in (
                ("seen", position),
                ("last", last),
                ("sum", _checksum(position, last)),
            ):
                db.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))
            if replica_state:
                db.execute("DELETE FROM replica")
                row = (replica_state, zlib.crc32(replica_state))
                db.execute("INSERT INTO replica VALUES (?, ?)", row)
            db.execute("COMMIT")
        except BaseException as error:
            self._vhosts.clear()
            self._roll_back()
            if not isinstance(error, _ERRORS):
                raise
            failure = self._error(error)
            if not isinstance(failure, CatalogUnwritten):
                self.broken = str(failure)
            raise failure from error
        self.log_position, self.last = position, last
        self.replica_state = replica_state or self.replica_state

    def remove_replica_state(self) -> None:
        """Remove the state of a node of a cluster, because the directory leaves its cluster."""
        try:
            self._db.execute("DELETE FROM replica")
        except _ERRORS as error:
            raise self._error(error) from error
        self.replica_state = b""

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self.broken = str(self._error(error))

    def _define(self, position: int, entry: Defined) -> None:
        """Insert a definition, or update an existing one.

        If an object of that name exists and has the definition's `number`, the object is updated.
        If the existing object has another number, this object and its bindings are deleted first.
        An existing binding, subscription or virtual host is always updated.
        """
        db, kind, table, vhost = self._db, entry.kind, _TABLES[entry.kind], entry.vhost
        name, definition = _encode_name(entry.name), dump(entry.definition)
        if vhost not in self._vhosts:
            vhost_bytes = _encode_name(vhost)
            db.execute(
                "INSERT OR IGNORE INTO vhosts VALUES (?, ?, ?, ?, ?)",
                (
                    position,
                    vhost,
                    vhost_bytes,
                    "{}",
                    _checksum("vhost", position, vhost, vhost_bytes, "{}"),
                ),
            )
            self._vhosts.add(vhost)
        known = db.execute(
            f"SELECT number FROM {table} WHERE vhost = ? AND name = ?", (vhost, name)
        ).fetchone()
        if known is not None:
            number: int = known[0]
            if kind in _LINK_TABLES or kind == "vhost" or number == entry.definition.get("number"):
                db.execute(
                    f"UPDATE {table} SET definition = ?, sum = ? WHERE number = ?",
                    (definition, _checksum(kind, number, vhost, name, definition), number),
                )
                return
            self._undefine(vhost, kind, entry.name)
        row = (
            position,
            vhost,
            name,
            definition,
            _checksum(kind, position, vhost, name, definition),
        )
        if kind in _LINK_TABLES:
            db.execute(
                f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, entry.definition["source"], entry.definition["destination"]),
            )
        else:
            db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", row)

    def _undefine(self, vhost: str, kind: str, name: str) -> None:
        """Delete a definition, if it exists, and the bindings or subscriptions that refer to it."""
        db, table = self._db, _TABLES[kind]
        if kind == "vhost":
            for other in _TABLES.values():
                db.execute(f"DELETE FROM {other} WHERE vhost = ?", (vhost,))
            self._vhosts.discard(vhost)
            return
        known = db.execute(
            f"SELECT number FROM {table} WHERE vhost = ? AND name = ?", (vhost, _encode_name(name))
        ).fetchone()
        if known is None:
            return
        db.execute(f"DELETE FROM {table} WHERE number = ?", known)
        if kind == "session":
            db.execute("DELETE FROM subscriptions WHERE destination = ?", known)
        elif kind in _OBJECT_TABLES:
            db.execute("DELETE FROM bindings WHERE destination = ?", known)
        if kind == "exchange":
            db.execute("DELETE FROM bindings WHERE vhost = ? AND source = ?", (vhost, *known))

    # -- closing

    def close(self) -> None:
        """Close the catalog; later writes raise CatalogError."""
        self.broken = self.broken or f"the catalog {self.path} is closed"
        self._db.close()

    # -- errors

    def _error(self, error: Exception) -> CatalogError:
        code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return CatalogFull(f"cannot write the catalog {self.path}: the disk is full")
        if code == sqlite3.SQLITE_CANTOPEN:
            return CatalogUnwritten(
                f"cannot write the catalog {self.path}: one of its files cannot be opened "
                f"({error}); raise the limit of file descriptors if they have run out"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return CatalogUnwritten(
                f"cannot write the catalog {self.path}: another process has locked it ({error}); "
                "end that process"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(
            error, UnicodeDecodeError
        ):
            return self._damage_error(str(error))
        return CatalogError(
            f"cannot use the catalog {self.path}: {error}; check the disk, and the owner and the "
            "permissions of the file"
        )

    def _damage_error(self, what: str) -> CatalogError:
        return CatalogError(
            f"the catalog {self.path} is damaged ({what}): replace it by a backup, or move it away,"
            " which discards all definitions and the messages in their queues"
        )


def _encode_name(name: str) -> bytes:
    """Return the bytes of a name. A binding's name has its routing key, which may not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def _checksum(*fields: object) -> int:
    return zlib.crc32(" ".join([str(field) for field in fields]).encode("utf-8", "surrogateescape"))
