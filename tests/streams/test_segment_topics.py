"""Full segments get a summary of their topics, which is removed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.store.backup import back_up
from broker.store.disk import RealDisk
from broker.stream.full_segments import FullSegments
from broker.stream.recovery import StreamRecovery
from broker.stream.segment_topics import HEAD_SIZE, encode_head, write_summary
from matching.topic_summary import decode_summary
from tests.clients import Amqp
from tests.store.homes import Home
from tests.store.simulated import SimulatedDisk
from tests.streams.test_inspect import look
from tests.streams.test_stream_queues import declare
from trellis.topic_summaries.summarizing import summarize

#: The size of a segment in bytes: two messages of BODY bytes.
SEGMENT = 16_384
BODY = 3_000


def fill(client: Amqp, first: int, count: int) -> None:
    """Publish messages with the topics t.FIRST, t.(FIRST + 1), ..."""
    for number in range(first, first + count):
        client.publish("amq.topic", f"t.{number}", bytes(BODY))


class Notices(FullSegments):
    """Records the directories of streams that the broker reports as having new full segments."""

    def __init__(self) -> None:
        self.directories: list[str] = []

    def add(self, directory: str) -> None:
        self.directories.append(directory)


def start(directory: Path, **arguments: Any) -> tuple[Home, Notices]:
    """Start a broker with a stream `s` that has three full segments, and an active segment."""
    home, notices = Home(directory), Notices()
    home.broker.streams.full_segments = notices
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=SEGMENT, **arguments)
    client.send(spec.Queue.Bind(queue="s", exchange="amq.topic", routing_key="#"))
    fill(client, 0, 7)
    return home, notices


def place(directory: Path) -> Path:
    return directory / "streams" / "%2F" / "s"


def summaries(directory: Path) -> dict[int, list[str] | None]:
    """Return (offset of a segment's first row -> topics in the summary of the segment).

    The value is None if the summary has no list of topics.
    """
    topics: dict[int, list[str] | None] = {}
    for file in sorted(place(directory).glob("*.topics")):
        summary = decode_summary(file.read_bytes()[HEAD_SIZE:-8])
        topics[int(file.name[11:31])] = (
            None if summary is None or summary.topics is None else list(summary.topics)
        )
    return topics


def test_each_full_segment_gets_a_summary_of_its_own(tmp_path: Path) -> None:
    home, notices = start(tmp_path / "d")
    directory = str(place(tmp_path / "d"))
    assert notices.directories == [directory] * 3
    assert summaries(tmp_path / "d") == {}
    assert summarize([directory, f"{directory}/missing"]) == 3
    expected = {0: ["t.0", "t.1"], 2: ["t.2", "t.3"], 4: ["t.4", "t.5"]}
    assert summaries(tmp_path / "d") == expected
    [first, *_] = sorted(place(tmp_path / "d").glob("*.topics"))
    number = home.broker.vhosts["/"].queues["s"].number
    assert first.read_bytes().startswith(encode_head(number, 1, 0, 2))
    assert summarize([directory]) == 0
    assert summarize([directory], lambda: False) == 0
    fill(home.amqp(), 7, 2)
    assert notices.directories == [directory] * 4
    assert summarize([directory]) == 1
    assert summaries(tmp_path / "d") == expected | {6: ["t.6", "t.7"]}


def test_a_start_finds_segments_without_a_summary(tmp_path: Path) -> None:
    home, _ = start(tmp_path / "d")
    queue = home.broker.vhosts["/"].queues["s"]
    home.crash()
    directory = str(place(tmp_path / "d"))

    def lacks_summary() -> bool:
        return StreamRecovery(RealDisk(), directory, queue.number, 7).lacks_summary

    assert lacks_summary()
    # The start has ended the active segment, so there are four full segments.
    assert summarize([directory]) == 4
    assert not lacks_summary()
    next(place(tmp_path / "d").glob("*.topics")).unlink()
    assert lacks_summary()


def test_retention_removes_summaries(tmp_path: Path) -> None:
    home, _ = start(tmp_path / "d", x_max_length_bytes=4 * SEGMENT)
    summarize([str(place(tmp_path / "d"))])
    assert min(summaries(tmp_path / "d")) == 0
    fill(home.amqp(), 7, 6)
    assert min(summaries(tmp_path / "d")) > 0
    segments = {file.name for file in place(tmp_path / "d").glob("*.arrow")}
    derived = {file.name for file in place(tmp_path / "d").iterdir()} - segments
    assert {name.rpartition(".")[0] for name in derived} <= segments


def test_a_deleted_stream_leaves_no_summary(tmp_path: Path) -> None:
    home, _ = start(tmp_path / "d")
    summarize([str(place(tmp_path / "d"))])
    home.amqp().send(spec.Queue.Delete(queue="s"))
    home.turn()
    assert list((tmp_path / "d" / "streams").iterdir()) == []


def test_a_start_removes_summaries_without_a_segment(tmp_path: Path) -> None:
    home, _ = start(tmp_path / "d")
    summarize([str(place(tmp_path / "d"))])
    home.crash()
    first = min(place(tmp_path / "d").glob("*.topics"))
    gone = first.with_name("0000000001-00000000000000000099.arrow.topics")
    gone.write_bytes(first.read_bytes())
    draft = first.with_name(f"{first.name}.tmp")
    draft.write_bytes(b"")
    Home(tmp_path / "d").crash()
    assert first.exists()
    assert not gone.exists()
    assert not draft.exists()


class SharedDisk(RealDisk):
    """A disk on which another process renames unfinished summaries after a directory was listed.

    The other process, which wrote the summaries, gives them their final names.
    """

    def list(self, directory: str) -> list[str]:
        names = super().list(directory)
        for name in names:
            if name.endswith(".topics.tmp"):
                self.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix('.tmp')}")
        return names


def test_a_start_ignores_a_draft_that_a_process_of_the_killed_broker_finishes(
    tmp_path: Path,
) -> None:
    home, _ = start(tmp_path / "d")
    directory = str(place(tmp_path / "d"))
    summarize([directory])
    number = home.broker.vhosts["/"].queues["s"].number
    home.crash()
    summary = min(place(tmp_path / "d").glob("*.topics"))
    summary.rename(f"{summary}.tmp")
    recovery = StreamRecovery(SharedDisk(), directory, number, 7)
    assert [str(finding) for finding in recovery.findings] == []
    assert summary.exists()


def test_rows_that_a_start_cuts_take_the_summary_with_them(tmp_path: Path) -> None:
    home, _ = start(tmp_path / "d")
    directory = str(place(tmp_path / "d"))
    summarize([directory])
    number = home.broker.vhosts["/"].queues["s"].number
    home.crash()
    StreamRecovery(RealDisk(), directory, number, 3)
    assert summaries(tmp_path / "d") == {0: ["t.0", "t.1"]}
    assert summarize([directory]) == 1
    assert summaries(tmp_path / "d") == {0: ["t.0", "t.1"], 2: ["t.2"]}


def test_verify_accepts_summaries_and_repair_keeps_those_of_intact_segments(
    tmp_path: Path,
) -> None:
    home, _ = start(tmp_path / "d")
    summarize([str(place(tmp_path / "d"))])
    home.crash()
    assert look(tmp_path / "d") == []
    assert look(tmp_path / "d", repairing=True) == []
    assert sorted(summaries(tmp_path / "d")) == [0, 2, 4]


def test_the_summary_of_a_damaged_segment_is_empty(tmp_path: Path) -> None:
    start(tmp_path / "d")
    first = min(place(tmp_path / "d").glob("*.arrow"))
    with first.open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"damage")
    assert summarize([str(place(tmp_path / "d"))]) == 3
    assert summaries(tmp_path / "d") == {0: None, 2: ["t.2", "t.3"], 4: ["t.4", "t.5"]}


def test_a_segment_with_a_damaged_index_gets_no_summary(tmp_path: Path) -> None:
    start(tmp_path / "d")
    first = min(place(tmp_path / "d").glob("*.index"))
    first.write_bytes(first.read_bytes()[:-1])
    assert summarize([str(place(tmp_path / "d"))]) == 2
    assert sorted(summaries(tmp_path / "d")) == [2, 4]


class Removing(SimulatedDisk):
    """A disk on which a segment is removed while its summary is renamed."""

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.remove(new.removesuffix(".topics"))


def test_a_segment_that_is_removed_meanwhile_leaves_no_summary(tmp_path: Path) -> None:
    start(tmp_path / "d")
    first = min(place(tmp_path / "d").glob("*.arrow"))
    files = {f"/s/{file.name}": file.read_bytes() for file in first.parent.iterdir()}
    whole, disk = SimulatedDisk(files), Removing(files)
    assert write_summary(whole, f"/s/{first.name}")
    assert whole.contents().keys() - files.keys() == {f"/s/{first.name}.topics"}
    with pytest.raises(FileNotFoundError):
        write_summary(disk, f"/s/{first.name}")
    assert files.keys() - disk.contents().keys() == {f"/s/{first.name}"}
    assert disk.contents().keys() < files.keys()


def test_a_backup_has_the_summaries(tmp_path: Path) -> None:
    start(tmp_path / "d")
    summarize([str(place(tmp_path / "d"))])
    back_up(str(tmp_path / "d"), str(tmp_path / "copy"), lambda done, total: None)
    assert summaries(tmp_path / "copy") == summaries(tmp_path / "d")
    Home(tmp_path / "copy").crash()
    assert sorted(summaries(tmp_path / "copy")) == [0, 2, 4]
