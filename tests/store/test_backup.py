"""Backups of a store while a broker writes to it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.messages.message import PLAIN, Address, Message
from broker.store.backup import back_up, copy_catalog
from broker.store.checkpoint import Checkpointing, files_worth_checkpoint
from broker.store.codecs import Codecs
from broker.store.contract import Defined, MessageSettled, MessageStored
from broker.store.disk import RealDisk, StoreError
from broker.store.opening import CATALOG, LOG, OpenedStore, open_store


def opened(directory: Path, complaints: list[str] | None = None) -> OpenedStore:
    found: list[str] = [] if complaints is None else complaints
    return open_store(
        RealDisk(), str(directory), Codecs(), 7, found.append, lambda recovery: None, 4_096
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
            settled[0] = serial - len(
                positions
            )  # This entry is not durable yet, so a backup may miss it.
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


def test_a_backup_overwrites_nothing_and_says_why_it_failed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(StoreError, match=f"there is no store in {home}"):
        back_up(str(home), str(tmp_path / "copy"), lambda done, total: None)
    store = opened(home).store
    store.append(MessageStored("/", Message(Address("", "q"), b"x", PLAIN, 1), [1]), None)
    store.sync()
    with pytest.raises(StoreError, match="it exists already"):
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
