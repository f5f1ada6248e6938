"""Tests that damage or remove any file of a data directory.

The broker must refuse to start with a clear error, or start and report the loss. The broker must
never deliver a wrong message, and never lose a message silently.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from broker.store.disk import StoreError
from tests.crash.damage import TOPICS, Home, build
from tests.store.test_faults import harm


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a killed broker."""
    directory = tmp_path_factory.mktemp("left")
    (directory / "data").mkdir()
    build(directory / "data", directory / "image")
    return directory / "image"


@pytest.fixture(scope="module")
def whole(left: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the contents of the undamaged directory."""
    there = tmp_path_factory.mktemp("whole") / "data"
    shutil.copytree(left, there)
    home = Home(there)
    assert home.reports == []
    contents = home.contents()
    home.leave()
    return contents


def files_of(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )


def test_the_directory_has_data_of_every_kind(left: Path, whole: dict[str, object]) -> None:
    files = files_of(left)
    assert (
        sum("checkpoint-" in name for name in files) == 1
        and sum(name.startswith("log/0") for name in files) > 3
    )
    assert (left / "catalog.sqlite-wal").stat().st_size > 50_000
    assert sum(name.endswith(".arrow") for name in files) > 5 and any(
        name.endswith(".arrow.index") for name in files
    )
    assert (
        all(whole[f"messages of {queue}"] for queue in ("one", "two", "last", "tape"))
        and len(whole["retained"]) > 2  # type: ignore[arg-type]
    )
    assert whole["messages of session keeper"] and any(
        whole[f"identifiers of session sensor{one}"] for one in range(3)
    )


def judge(directory: Path, whole: dict[str, object]) -> list[str]:
    """Start a broker on a damaged directory, and check that it serves no wrong message and reports
    each loss.

    Return the lines that the start prints, with the error first if there is one.
    """
    before = {
        name: (directory / name).read_bytes()
        for name in files_of(directory)
        if name.startswith("log/")
    }
    try:
        home = Home(directory)
    except StoreError as error:
        text = str(error)
        assert str(directory) in text and "\n" not in text, text
        # The catalog is read before the log is changed, so its error leaves the log as it was.
        if "catalog" in text:
            assert {name: (directory / name).read_bytes() for name in before} == before
        return [f"error: {text}"]
    contents = home.contents()
    home.leave()
    for name, value in contents.items():
        if name.startswith("messages of "):
            assert isinstance(value, list) and len(set(value)) == len(value), f"{name}: twice"
            words = {"session": b"sent", "limited": b"", "tape": b"one"}.get(
                name.split()[2], name.split()[2].encode()
            )
            for body in value:
                number = body.split()[1]
                assert body == (
                    b"last %d" % int(number)
                    if words == b"last"
                    else words + b" " + b"%04d " % int(number) * 30
                ), body
    assert isinstance(contents["retained"], list)
    for key, body in contents["retained"]:
        assert int(body.split()[1]) % TOPICS == int(key[3:]), (key, body)
    if contents != whole:
        assert home.reports, (
            f"silence about {[name for name in whole if contents.get(name) != whole[name]]}"
        )
    return home.reports


def try_harm(left: Path, whole: dict[str, object], target: Path, seed: int) -> None:
    random = Random(seed)
    name = random.choice(files_of(left))
    if random.random() < 0.3:
        name = random.choice(["catalog.sqlite", "catalog.sqlite-wal"])
    shutil.copytree(left, target)
    data = (target / name).read_bytes()
    if data:
        (target / name).write_bytes(harm(random, data))
    try:
        judge(target, whole)
    except Exception as error:
        error.add_note(f"seed {seed}, {name}")
        raise
    shutil.rmtree(target)


def test_changed_bytes_in_any_file_are_reported_and_never_delivered(
    left: Path, whole: dict[str, object], tmp_path: Path
) -> None:
    for seed in range(20):
        try_harm(left, whole, tmp_path / str(seed), seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_changed_bytes_in_many_more_places(
    part: int, left: Path, whole: dict[str, object], tmp_path: Path
) -> None:
    for seed in range(100 * part, 100 * part + 100):
        try_harm(left, whole, tmp_path / str(seed), seed)


def test_a_flipped_bit_in_the_catalogs_wal_is_an_error_or_cuts_the_last_transaction(
    left: Path, whole: dict[str, object], tmp_path: Path
) -> None:
    size = (left / "catalog.sqlite-wal").stat().st_size
    kinds: set[str] = set()
    for at in [0, 9, 20, 30, 40, 60, *range(100, size, size // 12), size - 1]:
        target = tmp_path / str(at)
        shutil.copytree(left, target)
        data = bytearray((target / "catalog.sqlite-wal").read_bytes())
        data[at] ^= 4
        (target / "catalog.sqlite-wal").write_bytes(data)
        [line] = judge(target, whole)
        kinds.add(line.partition(" ")[0])
        assert "catalog.sqlite-wal'" in line or "cut: catalog.sqlite-wal at " in line
    assert kinds == {"error:", "cut:"}


def first_segment(directory: Path) -> Path:
    return min(path for path in (directory / "log").iterdir() if path.name.startswith("0"))


def gone(pattern: str, newest: bool = False) -> Callable[[Path], None]:
    def remove(directory: Path) -> None:
        files = sorted(directory.glob(pattern))
        files[-1 if newest else 0].unlink()

    return remove


def empty(name: str) -> Callable[[Path], None]:
    return lambda directory: os.truncate(directory / name, 0)


def of_something_else(directory: Path) -> None:
    for path in directory.glob("catalog*"):
        path.unlink()
    with sqlite3.connect(directory / "catalog.sqlite") as db:
        db.execute("CREATE TABLE songs (name TEXT)")
    db.close()


def no_database(directory: Path) -> None:
    for path in directory.glob("catalog*"):
        path.unlink()
    (directory / "catalog.sqlite").write_bytes(b"a letter to my grandmother" * 500)


def newer_catalog(directory: Path) -> None:
    with sqlite3.connect(directory / "catalog.sqlite") as db:
        db.execute("UPDATE meta SET value = 99 WHERE name = 'version'")
    db.close()


def newer_log(directory: Path) -> None:
    path = first_segment(directory)
    data = bytearray(path.read_bytes())
    head = data[:4] + b"\x00\x03" + data[6:12] + data[16:32]
    data[:32] = data[32:64] = head[:12] + crc32(head).to_bytes(4, "big") + head[12:]
    path.write_bytes(data)


def no_log(directory: Path) -> None:
    shutil.rmtree(directory / "log")


def no_segment_in_the_middle(directory: Path) -> None:
    sorted(directory.glob("streams/*/tape/*.arrow"))[2].unlink()


def no_data_in_the_last_file(directory: Path) -> None:
    os.truncate(max((directory / "log").glob("0*")), 64)


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (gone("log/0*"), "missing: 0"),
        (gone("log/0*", newest=True), "missing: log: the log ends at position "),
        (gone("log/checkpoint-*"), "missing: 0"),
        (
            no_log,
            "log: the log ends at position 0, but the broker has written it up to position ",
        ),
        (no_data_in_the_last_file, "missing: log: the log ends at position "),
        (no_segment_in_the_middle, "of stream 'tape' in vhost '/' is lost"),
        (gone("catalog.sqlite"), "error: the catalog "),
        (empty("catalog.sqlite"), "error: the catalog "),
        (of_something_else, "is not a catalog of Trellis: move this file away"),
        (no_database, "is damaged (file is not a database): "),
        (newer_catalog, "has schema version 99, and this broker knows only versions up to "),
        (newer_log, "reads only formats 1 to 2; use the version that wrote the file"),
    ],
)
def test_missing_foreign_or_newer_file_is_reported_at_every_start(
    do: Callable[[Path], None], says: str, left: Path, whole: dict[str, object], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(left, directory)
    do(directory)
    for _ in range(2):
        reports = judge(directory, whole)
        assert any(says in line for line in reports), reports


def test_missing_irrelevant_file_is_no_damage(
    left: Path, whole: dict[str, object], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(left, directory)
    (directory / "catalog.sqlite-shm").unlink()
    (directory / "log" / "notes.txt").write_text("of another program")
    assert judge(directory, whole) == []
