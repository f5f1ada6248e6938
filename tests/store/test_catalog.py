"""Catalog: batches are durable as a whole or not at all; damaged and newer files are refused."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.store.backup import copy_catalog
from broker.store.catalog import (
    MAGIC,
    VERSION,
    Catalog,
    CatalogError,
    CatalogFull,
    CatalogUnwritten,
)
from broker.store.entries import Defined, MessageSettled, StoreEntry, Undefined

Loaded = list[tuple[int, str, str, str, dict[str, object]]]
Changes = list[tuple[int, StoreEntry]]


def loaded(catalog: Catalog) -> Loaded:
    return [
        (number, entry.vhost, entry.kind, entry.name, entry.definition)
        for number, entry in catalog.load()
    ]


def at(path: Path) -> tuple[Loaded, int, int]:
    """Open the catalog at a path; return (definitions, log position, highest position).

    Both positions are from the last write of the catalog. The log position is the last position in
    the log. The highest position is the highest one of all entries in the catalog and the log, so
    it may be above the log position.
    """
    catalog = Catalog(str(path))
    try:
        return loaded(catalog), catalog.log_position, catalog.last
    finally:
        catalog.close()


def without_vhosts(rows: Loaded) -> Loaded:
    return [row for row in rows if row[2] != "vhost"]


def queue(name: str, vhost: str = "/") -> Defined:
    return Defined(vhost, "queue", name, {"auto_delete": False, "arguments": {}})


def way(name: str, source: int, destination: int, kind: str = "binding") -> Defined:
    return Defined("/", kind, name, {"source": source, "destination": destination, "key": "k"})


# -- a model


class Model:
    """A model of the catalog in dicts. Removing an object removes the bindings that refer to it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], tuple[int, dict[str, object]]] = {}

    def apply(self, position: int, entry: StoreEntry) -> None:
        if isinstance(entry, Defined):
            key = (entry.vhost, entry.kind, entry.name)
            known = self.rows.get(key)
            same = known is not None and (
                entry.kind in ("binding", "subscription")
                or entry.definition.get("number") == known[0]
            )
            if known is not None and not same:
                self.remove(key)
            self.rows[key] = (
                known[0] if known is not None and same else position,
                entry.definition,
            )
        elif isinstance(entry, Undefined):
            self.remove((entry.vhost, entry.kind, entry.name))

    def remove(self, key: tuple[str, str, str]) -> None:
        gone = self.rows.pop(key, None)
        if gone is not None and key[1] not in ("binding", "subscription"):
            for other, (_, definition) in list(self.rows.items()):
                if gone[0] in (definition.get("source"), definition.get("destination")):
                    del self.rows[other]

    def listed(self) -> Loaded:
        return sorted((number, *key, definition) for key, (number, definition) in self.rows.items())


NAMES = st.sampled_from(["a", "b", "c\0d", "ü", "", "\udc80"])


@st.composite
def histories(draw: st.DrawFn) -> list[Changes]:
    """Draw batches of changes as a broker makes them: bindings refer only to existing objects."""
    model, position, batches = Model(), 0, list[Changes]()
    for _ in range(draw(st.integers(1, 6))):
        changes: Changes = []
        for _ in range(draw(st.integers(0, 6))):
            position += draw(st.integers(1, 3))
            entry = draw(st.sampled_from([_thing, _way, _way, _again, _gone]))(draw, model)
            model.apply(position, entry)
            changes.append((position, entry))
        batches.append(changes)
    return batches


def _thing(draw: st.DrawFn, model: Model) -> StoreEntry:
    return Defined(
        draw(st.sampled_from(["/", "other"])),
        draw(st.sampled_from(["exchange", "queue", "session"])),
        draw(NAMES),
        {"arguments": {"a": draw(st.sampled_from([1, "x", b"\xff", None]))}},
    )


def _way(draw: st.DrawFn, model: Model) -> StoreEntry:
    things = [(key, number) for key, (number, _) in model.rows.items() if key[0] == "/"]
    sources = [-3] + [number for key, number in things if key[1] == "exchange"]
    kind = draw(st.sampled_from(["binding", "subscription"]))
    ends = [
        number
        for key, number in things
        if key[1] in (["session"] if kind == "subscription" else ["exchange", "queue"])
    ]
    if not ends:
        return _thing(draw, model)
    source, destination = (
        -3 if kind == "subscription" else draw(st.sampled_from(sources)),
        draw(st.sampled_from(ends)),
    )
    return Defined(
        "/",
        kind,
        f"{source}:{destination}:{draw(NAMES)}",
        {"source": source, "destination": destination, "assurance": draw(st.integers(0, 2))},
    )


def _again(draw: st.DrawFn, model: Model) -> StoreEntry:
    """Draw a change of an existing session, or another definition if there is no session."""
    sessions = [(key, number) for key, (number, _) in model.rows.items() if key[1] == "session"]
    if not sessions:
        return _thing(draw, model)
    (vhost, kind, name), number = draw(st.sampled_from(sessions))
    return Defined(vhost, kind, name, {"number": number, "away_since": draw(st.integers(0, 9))})


def _gone(draw: st.DrawFn, model: Model) -> StoreEntry:
    if not model.rows or draw(st.booleans()) and draw(st.booleans()):
        return Undefined(
            "/",
            draw(st.sampled_from(["exchange", "queue", "session", "binding", "subscription"])),
            draw(NAMES),
        )
    return Undefined(*draw(st.sampled_from(sorted(model.rows))))


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)
@given(histories())
def test_starting_broker_finds_the_written_definitions(
    tmp_path: Path, batches: list[Changes]
) -> None:
    path = tmp_path / "catalog"
    for old in tmp_path.iterdir():
        old.unlink()
    model, catalog, last = Model(), Catalog(str(path)), 0
    for serial, changes in enumerate(batches):
        seen = last + 1
        catalog.write(changes, seen)
        for position, entry in changes:
            model.apply(position, entry)
            last = max(last, position)
        last = max(last, seen)
        if serial % 2:
            catalog.close()
            catalog = Catalog(str(path))
        assert without_vhosts(loaded(catalog)) == model.listed()
        assert (catalog.log_position, catalog.last) == (seen, last)
    assert {row[3] for row in loaded(catalog) if row[2] == "vhost"} == {
        entry.vhost for changes in batches for _, entry in changes if isinstance(entry, Defined)
    }
    catalog.close()


# -- cascades


def test_removed_definition_takes_its_bindings_and_no_others(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    things: Changes = [
        (1, Defined("/", "exchange", "e", {})),
        (2, Defined("/", "exchange", "f", {})),
        (3, queue("q")),
        (4, Defined("/", "session", "q", {})),
    ]
    ways: Changes = [
        (5, way("1:3:k", 1, 3)),
        (6, way("-4:3:k", -4, 3)),
        (7, way("1:2:k", 1, 2)),
        (8, way("2:1:k", 2, 1)),
        (9, way("-4:4:k", -4, 4, "subscription")),
        (10, way("-4:2:k", -4, 2)),
    ]
    for kind, name, left in [
        ("queue", "q", {7, 8, 9, 10}),
        ("session", "q", {5, 6, 7, 8, 10}),
        ("exchange", "e", {6, 9, 10}),
        ("exchange", "f", {5, 6, 9}),
        ("binding", "1:3:k", {6, 7, 8, 9, 10}),
        ("queue", "e", {5, 6, 7, 8, 9, 10}),
    ]:
        catalog.write([*things, *ways], 10)
        catalog.write([(11, Undefined("/", kind, name))], 11)
        assert {
            row[0] for row in loaded(catalog) if row[2] in ("binding", "subscription")
        } == left, (kind, name)
        catalog.write([(12, Undefined("/", "vhost", "/"))], 12)
        assert loaded(catalog) == []
    catalog.close()


def test_a_late_undefined_binding_leaves_one_that_was_made_anew(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    catalog.write(
        [
            (1, queue("q")),
            (2, way("-4:1:k", -4, 1)),
            (3, Undefined("/", "queue", "q")),
            (4, queue("q")),
            (5, way("-4:4:k", -4, 4)),
            (6, Undefined("/", "binding", "-4:1:k")),
        ],
        0,
    )
    assert [row[0] for row in without_vhosts(loaded(catalog))] == [4, 5]
    catalog.close()


def test_a_queue_declared_over_a_refused_queue_replaces_it_and_its_bindings(tmp_path: Path) -> None:
    """A start may refuse a stored queue, for example because the settings no longer allow it.

    No client can delete that queue, so a new declaration must replace it.
    """
    catalog = Catalog(str(tmp_path / "c"))
    catalog.write([(1, queue("q")), (2, way("-4:1:k", -4, 1)), (3, queue("q"))], 0)
    assert [row[0] for row in without_vhosts(loaded(catalog))] == [3]
    catalog.close()


# -- batches and crashes


def test_batch_is_whole_or_missing_after_any_loss_of_the_last_writes(tmp_path: Path) -> None:
    """Cut SQLite's write-ahead log of the catalog anywhere, as a crash or a power loss does.

    The catalog must then have the definitions after the last batch whose sync is before the cut.
    """
    path = tmp_path / "c"
    catalog = Catalog(str(path))
    states, syncs = [at_rest(catalog)], []
    for serial in range(8):
        base = serial * 10
        catalog.write(
            [
                (base + 1, queue(f"q{serial}" * 200)),
                (base + 2, way(f"-4:{base + 1}:k", -4, base + 1)),
                (base + 3, Undefined("/", "queue", f"q{serial - 2}" * 200)),
            ],
            base + 4,
        )
        states.append(at_rest(catalog))
        syncs.append((tmp_path / "c-wal").stat().st_size)
    data, wal = path.read_bytes(), (tmp_path / "c-wal").read_bytes()
    chance = random.Random(1)
    cuts = {*syncs, *(size - 1 for size in syncs), 0, *chance.choices(range(len(wal)), k=100)}
    for cut in sorted(cuts):
        crashed = tmp_path / f"crashed{cut}"
        crashed.write_bytes(data)
        Path(f"{crashed}-wal").write_bytes(wal[:cut])
        synced = sum(size <= cut for size in syncs)
        assert at(crashed) == states[synced], cut
    catalog.close()


def at_rest(catalog: Catalog) -> tuple[Loaded, int, int]:
    return loaded(catalog), catalog.log_position, catalog.last


@pytest.mark.parametrize(
    "bad",
    [
        MessageSettled(1, 1),
        Defined("/", "queue", "q", {"arguments": {"a": object()}}),
        way("x", 1, None),  # type: ignore[arg-type]
    ],
)
def test_a_batch_that_fails_leaves_nothing(tmp_path: Path, bad: StoreEntry) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    catalog.write([(1, queue("a"))], 1)
    before = at_rest(catalog)
    with pytest.raises((AssertionError, TypeError, CatalogError)):
        catalog.write([(2, queue("b", "other")), (3, bad)], 3)
    assert at_rest(catalog) == before
    if not catalog.broken:
        catalog.write([(2, queue("b", "other"))], 3)
        assert [row[2:4] for row in loaded(catalog)] == [
            ("vhost", "/"),
            ("queue", "a"),
            ("vhost", "other"),
            ("queue", "b"),
        ]
    catalog.close()


def test_a_full_disk_loses_the_batch_and_nothing_else(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    catalog.write([(1, queue("a"))], 1)
    before = at_rest(catalog)
    [pages] = catalog._db.execute("PRAGMA page_count").fetchone()
    catalog._db.execute(f"PRAGMA max_page_count = {pages}")
    big: Changes = [(2, queue("b" * 100_000))]
    for _ in range(2):
        with pytest.raises(CatalogFull, match="the disk is full"):
            catalog.write(big, 2)
        assert at_rest(catalog) == before
    catalog._db.execute("PRAGMA max_page_count = 1000000")
    catalog.write(big, 2)
    assert catalog.log_position == 2
    catalog.close()
    assert at(tmp_path / "c")[1:] == (2, 2)


def test_catalog_waits_for_a_lock_of_another_process_and_then_reports_it(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    catalog._db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(tmp_path / "c", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CatalogUnwritten, match="another process"):
        catalog.write([(1, queue("a"))], 1)
    other.execute("COMMIT")
    other.close()
    catalog.write([(1, queue("a"))], 1)
    assert len(loaded(catalog)) == 2
    catalog.close()


def test_after_another_error_nothing_is_written_any_more(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    catalog._db.execute("DROP TABLE queues")
    for _ in range(2):
        with pytest.raises(CatalogError, match="no such table: queues"):
            catalog.write([(1, queue("a"))], 1)
    catalog.close()
    with pytest.raises(CatalogError, match="no such table"):
        catalog.write([], 2)


def test_catalog_may_be_written_by_another_thread_than_its_opener(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "c"))
    with ThreadPoolExecutor(1) as writer:
        writer.submit(catalog.write, [(1, queue("a"))], 1).result()
    assert without_vhosts(loaded(catalog))[0][0] == 1
    catalog.close()


# -- files that are not a catalog, or have another schema version


def test_a_newer_catalog_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Catalog(str(path)).close()
    with sqlite3.connect(path) as newer:
        newer.execute("UPDATE meta SET value = ? WHERE name = 'version'", (VERSION + 1,))
        newer.execute("PRAGMA journal_mode = DELETE")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(
        CatalogError,
        match=f"schema version {VERSION + 1}, and this broker knows only versions up to {VERSION}",
    ):
        Catalog(str(path))
    assert path.read_bytes() == before


def test_a_file_of_version_0_is_brought_to_this_version(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    catalog = Catalog(str(tmp_path / "c"))
    assert dict(catalog._db.execute("SELECT name, value FROM meta"))["version"] == VERSION
    assert catalog._db.execute("PRAGMA application_id").fetchone() == (MAGIC,)
    assert at_rest(catalog) == ([], 0, 0)
    catalog.close()


def _other_application(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA application_id = 7")
    other.close()


def _other_tables(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE a (b)")
    other.close()


def _no_meta(path: Path) -> None:
    Catalog(str(path)).close()
    with sqlite3.connect(path) as other:
        other.execute("DELETE FROM meta")
    other.close()


def _cut(path: Path) -> None:
    Catalog(str(path)).close()
    path.write_bytes(path.read_bytes()[:-5_000])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_bytes(b"not a database at all " * 500), "damaged"),
        (_other_application, "is not a catalog of Trellis"),
        (_other_tables, "is not a catalog of Trellis"),
        (_no_meta, "schema version"),
        (_cut, "damaged"),
        (lambda path: path.mkdir(), "open"),
    ],
    ids=["text", "other application", "other tables", "no meta", "cut", "directory"],
)
def test_file_that_is_no_catalog_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    path = tmp_path / "c"
    spoil(path)
    with pytest.raises(CatalogError, match=says) as refused:
        Catalog(str(path))
    assert str(path) in str(refused.value)


def _furnished(path: Path) -> Path:
    """Make a catalog with enough definitions for several SQLite pages, and return its path."""
    catalog = Catalog(str(path))
    changes: Changes = [(1, Defined("/", "exchange", "e", {"arguments": {"a": "b" * 2_000}}))]
    for number in range(2, 60, 2):
        changes += [
            (number, queue(f"queue {number}")),
            (number + 1, way(f"1:{number}:key", 1, number)),
        ]
    catalog.write(changes, 70)
    catalog.write([(at, Undefined("/", "queue", f"queue {at}")) for at in range(2, 20, 2)], 80)
    catalog.close()
    return path


def test_damage_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = _furnished(tmp_path / "c")
    whole, data, chance = at(path), path.read_bytes(), random.Random(2)
    noticed, silent = 0, list[int]()
    for trial in range(400):
        spoilt = bytearray(data)
        where = chance.randrange(len(data))
        for near in range(where, min(where + chance.choice([1, 1, 4, 600]), len(data))):
            spoilt[near] ^= chance.randrange(1, 256)
        broken = tmp_path / f"spoilt{trial}"
        broken.write_bytes(spoilt)
        try:
            if at(broken) != whole:
                silent.append(where)
        except CatalogError:
            noticed += 1
        for left in tmp_path.glob(f"spoilt{trial}*"):
            left.unlink()
    assert silent == []
    assert noticed > 20


# -- backups


def test_a_backup_is_a_catalog_of_one_moment(tmp_path: Path) -> None:
    path = _furnished(tmp_path / "c")
    catalog = Catalog(str(path))
    before, stop = at_rest(catalog), threading.Event()

    def writes() -> None:
        position = 100
        while not stop.is_set():
            catalog.write(
                [
                    (position, queue(f"more {position}")),
                    (position + 1, way(f"1:{position}:k", 1, position)),
                ],
                position + 1,
            )
            position += 2

    copies = [tmp_path / f"copy{serial}" for serial in range(5)]
    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(writes)
        try:
            for copy in copies:
                copy_catalog(catalog.path, str(copy))
        finally:
            stop.set()
        writing.result()
    assert sorted(one.name for one in tmp_path.glob("copy*")) == [copy.name for copy in copies]
    seen = 0
    for copy in copies:
        rows, position, last = at(copy)
        assert rows[: len(before[0])] == before[0]
        assert [row[0] for row in rows[len(before[0]) :]] == list(range(100, max(last, 80) + 1))[
            : len(rows) - len(before[0])
        ]
        assert len(rows) - len(before[0]) == (position - 99 if position >= 100 else 0)
        assert position >= seen
        seen = position
    catalog.close()
