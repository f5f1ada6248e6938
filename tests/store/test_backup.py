"""Backups of a store while a broker writes to it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.messages.message import PLAIN, Address, Message
from broker.store.backup import _copy_streams, back_up, copy_catalog
from broker.store.checkpoint import Checkpointing
from broker.store.checkpoint_schedule import files_worth_checkpoint
from broker.store.codecs import Codecs
from broker.store.disk import RealDisk, StoreError
from broker.store.dropping import dead_files, drop_dead_files
from broker.store.entries import Defined, MessageSettled, MessageStored
from broker.store.files import SEGMENT, Head
from broker.store.opening import CATALOG, LOG, OpenedStore, open_store


def opened(directory: Path, complaints: list[str] | None = None) -> OpenedStore:
    findings: list[str] = [] if complaints is None else complaints
    return open_store(
        RealDisk(), str(directory), Codecs(), 7, findings.append, lambda recovery: None, 4_096
    )


def body(serial: int) -> bytes:
    return serial.to_bytes(4, "big") * 20


def test_a_backup_has_all_that_was_durable_when_it_was_begun(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = opened(home).store
    queue = store.append(Defined("/", "queue", "q", {"auto_delete": False, "arguments": {}}), None)
    store.sync()
    durable, settled, stop = [0], [0], threading.Event()

    def write() -> None:
        positions: list[int] = []
        serial = 0
        while not stop.is_set():
            for _ in range(7):
                serial += 1
                positions.append(
                    int(
                        store.append(
                            MessageStored(
                                "/", Message(Address("", "q"), body(serial), PLAIN, 1), [queue]
                            ),
                            None,
                        )
                    )
                )
            while len(positions) > 50:
                store.append(MessageSettled(queue, positions.pop(0)), None)
            # This entry is not durable yet, so a backup may miss it.
            settled[0] = serial - len(positions)
            store.sync()
            durable[0] = serial
            files = files_worth_checkpoint(store.log)
            if files:
                Checkpointing(store.log, files, set(store.holder_numbers)).run()

    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(write)
        try:
            for number in range(12):
                before = durable[0]
                size = back_up(str(home), str(tmp_path / f"copy{number}"), lambda done, total: None)
                gone = settled[0]
                assert size == sum(
                    file.stat().st_size
                    for file in (tmp_path / f"copy{number}").rglob("*")
                    if file.is_file()
                )
                complaints: list[str] = []
                copy = opened(tmp_path / f"copy{number}", complaints)
                assert [entry.name for _, entry in copy.definitions] == ["/", "q"][
                    -len(copy.definitions) :
                ]
                messages = copy.store.fetch(
                    queue, list(copy.survivors.copies.by_queue().get(queue, []))
                )
                serials = [
                    int.from_bytes(message.content[:4], "big")
                    for message in messages
                    if message is not None
                ]
                assert len(serials) == len(messages) and complaints == []
                assert [message.content for message in messages if message is not None] == [
                    body(serial) for serial in serials
                ]
                assert serials == sorted(serials) and set(serials) >= set(
                    range(gone + 1, before + 1)
                )
                assert [
                    finding.kind for finding in copy.recovery.findings if finding.kind != "cut"
                ] == []
                copy.store.close()
        finally:
            stop.set()
        writing.result()
    assert durable[0] > 100
    store.close()


def test_a_backup_has_a_message_that_moves_into_a_newer_file_while_it_is_copied(
    tmp_path: Path,
) -> None:
    """Move a message while the backup copies the log, so that the message's old file is dropped.

    The backup must have the old file as a whole nevertheless.
    """
    home = tmp_path / "home"
    home.mkdir()
    store = opened(home).store
    queues = [
        int(
            store.append(Defined("/", "queue", name, {"auto_delete": False, "arguments": {}}), None)
        )
        for name in ("q", "dead")
    ]

    def put(serial: int, queue: int) -> int:
        message = Message(Address("", "q"), body(serial), PLAIN, 1)
        return int(store.append(MessageStored("/", message, [queue]), None))

    moving = put(1, queues[0])
    store.sync()
    while len(store.log.files) < 2:
        store.append(MessageSettled(queues[0], put(2, queues[0])), None)
        store.sync()
    stays = put(4, queues[0])
    store.sync()
    old, behind = store.log.files
    moved: list[int] = []

    def move(done: int, total: int) -> None:
        if moved:
            return
        while store.log.active is behind:
            store.append(MessageSettled(queues[0], put(3, queues[0])), None)
            store.sync()
        store.begin()
        moved.append(put(1, queues[1]))
        store.append(MessageSettled(queues[0], moving), None)
        store.commit()
        store.sync()
        assert dead_files(store.log)[0] == [old]
        drop_dead_files(store.log)

    back_up(str(home), str(tmp_path / "copy"), move)
    assert moved and not os.path.exists(old.path)
    store.close()
    complaints: list[str] = []
    copy = opened(tmp_path / "copy", complaints)
    assert list(copy.survivors.copies.by_queue()[queues[0]]) == [moving, stays]
    messages = copy.store.fetch(queues[0], [moving, stays])
    assert [message and message.content for message in messages] == [body(1), body(4)]
    assert complaints == []
    assert [finding.kind for finding in copy.recovery.findings if finding.kind != "cut"] == []
    copy.store.close()


@pytest.mark.parametrize("size", [0, 20, 64])
def test_a_backup_of_a_segment_without_records_is_as_good_as_the_original(
    tmp_path: Path, size: int
) -> None:
    """A crash may leave a segment without records: empty, or with a part of its head.

    A backup of such a log must be as usable as the log itself.
    """
    home = tmp_path / "home"
    home.mkdir()
    store = opened(home).store
    store.append(MessageStored("/", Message(Address("", "q"), b"x", PLAIN, 1), [1]), None)
    store.sync()
    last = int(store.log.last)
    store.close()
    head = Head(SEGMENT, store.log.salt, last + 1, last).encode()
    (home / LOG / f"{last + 1:020d}.log").write_bytes(head[:size])
    back_up(str(home), str(tmp_path / "copy"), lambda done, total: None)
    for directory in (tmp_path / "copy", home):
        again = opened(directory)
        assert again.recovery.last == last and again.recovery.findings == []
        again.store.close()


def test_a_backup_overwrites_nothing_and_says_why_it_failed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(StoreError, match=f"there is no store in {home}"):
        back_up(str(home), str(tmp_path / "copy"), lambda done, total: None)
    store = opened(home).store
    store.append(MessageStored("/", Message(Address("", "q"), b"x", PLAIN, 1), [1]), None)
    store.sync()
    with pytest.raises(StoreError, match="this path exists already"):
        back_up(str(home), str(home), lambda done, total: None)
    (tmp_path / "copy.part").mkdir()
    with pytest.raises(StoreError, match=r"copy.part exists: another backup is running"):
        back_up(str(home), str(tmp_path / "copy"), lambda done, total: None)
    (tmp_path / "copy.part").rmdir()
    with pytest.raises(StoreError, match="unable to open database file"):
        copy_catalog(str(home / CATALOG), str(tmp_path / "nowhere" / "c"))
    back_up(str(home), str(tmp_path / "copy"), lambda done, total: None)
    assert (
        os.listdir(tmp_path / "copy" / LOG) == os.listdir(home / LOG)
        and not (tmp_path / "copy.part").exists()
    )
    store.close()


def test_a_backup_has_a_segment_of_each_stream_however_fast_retention_removes_segments(
    tmp_path: Path,
) -> None:
    """Retention removes segments of a stream while the backup copies them.

    Retention always keeps the last segment, so a backup without any segment would be wrong.
    """
    stream = tmp_path / "streams" / "%2F" / "s"
    stream.mkdir(parents=True)

    def path(number: int) -> Path:
        return stream / f"{1:010d}-{number:020d}.arrow"

    def retain() -> None:
        for number in range(1, 3_000):
            path(number).write_bytes(b"%d" % number)
            path(number - 1).unlink()

    path(0).write_bytes(b"0")
    copies = 0
    with ThreadPoolExecutor(1) as pool:
        retaining = pool.submit(retain)
        while not retaining.done():
            copies += 1
            target = tmp_path / f"copy{copies}"
            _copy_streams(str(tmp_path / "streams"), str(target))
            assert list((target / "%2F" / "s").glob("*.arrow")), "the copy has no segment"
    retaining.result()
    assert copies > 3


def test_a_backup_has_an_index_only_with_the_segment_of_the_index(tmp_path: Path) -> None:
    stream = tmp_path / "streams" / "%2F" / "s"
    stream.mkdir(parents=True)
    first, second = (f"{1:010d}-{number:020d}.arrow" for number in (0, 7))
    for name in (f"{first}.index", second, f"{second}.index", f"{second}.index.tmp"):
        (stream / name).write_bytes(name.encode())
    size = _copy_streams(str(tmp_path / "streams"), str(tmp_path / "copy"))
    copied = {one.name: one.read_bytes() for one in (tmp_path / "copy" / "%2F" / "s").iterdir()}
    assert copied == {name: name.encode() for name in (second, f"{second}.index")}
    assert size == sum(map(len, copied))
