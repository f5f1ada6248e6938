"""Tests of a replicated log that run in memory, on kfake (a Kafka in memory) and on real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from broker.replication.contract import Apply, LogSpan, LogTrimmed, Timing
from broker.replication.engine import ReplicatedLog, carry_out
from broker.replication.follower import Follower
from broker.replication.memory import MemoryLog, MemoryNodeLog
from broker.replication.owner import LogOwner
from broker.replication.records import BATCH_OVERHEAD, ClusterState
from broker.replication.report import NodeReport
from broker.replication.standby import Standby
from tests.cluster.conftest import OpenLog, cluster_on, created

#: The type of a function that opens the log of the test for the node with this name.
OfNode = Callable[[str], ReplicatedLog]
CHUNK = 8 << 20
#: Pytest marks of tests on a real Kafka: all these tests run in one process, which starts the node
#: once.
KAFKA = [pytest.mark.long, pytest.mark.xdist_group("kafka")]


@pytest.fixture(params=["memory", "kfake", pytest.param("kafka", marks=KAFKA)])
def of_node(request: pytest.FixtureRequest, name: str, open_log: OpenLog) -> Iterator[OfNode]:
    """Yield a function that opens the replicated log for a node with a given name.

    All nodes get the same log.
    """
    if request.param == "memory":
        memory = MemoryLog()
        yield lambda node: MemoryNodeLog(memory, node)
        return
    fixture = {"kfake": "kfake", "kafka": "kafka_node"}[request.param]
    servers = request.getfixturevalue(fixture).servers
    cluster = created(cluster_on(servers, name), 3 if request.param == "kfake" else 1)
    yield lambda node: open_log(cluster, node)


def read_all(log: ReplicatedLog, offset: int) -> list[tuple[int, bytes]]:
    """Return the (offset, data) pairs of all records from an offset on."""
    records: list[tuple[int, bytes]] = []
    while (span := log.read(offset + len(records))).records:
        records += span.records
    return records


def test_appended_records_have_consecutive_offsets_and_are_read_in_order(of_node: OfNode) -> None:
    writer, reader = of_node("one"), of_node("two")
    records = [b"first", b"", b"third" * 1000]
    assert [writer.append(data) for data in records] == [0, 1, 2]
    assert read_all(reader, 0) == list(enumerate(records))
    assert read_all(reader, 2) == [(2, records[2])]
    assert read_all(reader, 1) == [(1, b""), (2, records[2])]


def test_reads_at_any_offset_return_the_records_from_there_on(of_node: OfNode) -> None:
    log, random = of_node("one"), Random(1)
    records = [bytes([number]) * random.randrange(3000) for number in range(200)]
    for data in records:
        log.append(data)
    for _ in range(15):
        offset = random.randrange(200)
        span = log.read(offset)
        assert span.tip == 200
        assert span.records == list(enumerate(records))[offset : offset + len(span.records)]
        assert span.records


def test_span_of_an_empty_log_and_of_the_tip_has_the_tip(of_node: OfNode) -> None:
    log = of_node("one")
    assert log.read(0) == LogSpan([], 0)
    log.append(b"a")
    log.append(b"b")
    assert log.read(2) == LogSpan([], 2)
    log.append(b"c")
    assert log.read(2) == LogSpan([(2, b"c")], 3)


def test_read_before_the_beginning_of_a_trimmed_log_names_the_beginning(of_node: OfNode) -> None:
    writer, reader = of_node("one"), of_node("two")
    for number in range(5):
        writer.append(b"%d" % number)
    assert len(read_all(reader, 0)) == 5
    writer.trim(3)
    writer.trim(1)
    for _ in range(2):
        with pytest.raises(LogTrimmed) as trimmed:
            reader.read(1)
        assert trimmed.value.low == 3
    assert read_all(reader, 3) == [(3, b"3"), (4, b"4")]
    assert writer.append(b"5") == 5


def test_trimmed_log_without_records_goes_on_at_its_tip(of_node: OfNode) -> None:
    log = of_node("one")
    log.append(b"a")
    log.append(b"b")
    log.trim(2)
    assert log.read(2) == LogSpan([], 2)
    with pytest.raises(LogTrimmed) as trimmed:
        log.read(0)
    assert trimmed.value.low == 2
    assert log.append(b"c") == 2


def test_reports_are_those_that_the_nodes_made_last(of_node: OfNode) -> None:
    one, two = of_node("one"), of_node("two")
    one.append(b"a")
    assert one.reports() == {}
    first = NodeReport(0, "0.1.0", "following", 3, 9, 1_700_000_000_000, 5, "description")
    one.report(first)
    two.report(NodeReport(1, "0.2.0"))
    assert one.reports() == two.reports() == {"one": first, "two": NodeReport(1, "0.2.0")}
    one.report(NodeReport(1, "0.1.1"))
    assert two.reports()["one"] == NodeReport(1, "0.1.1")
    one.remove_report("two")
    one.remove_report("three")
    assert one.reports().keys() == {"one"}


def test_record_may_have_the_size_of_a_chunk(of_node: OfNode) -> None:
    log = of_node("one")
    data = bytes(range(256)) * (CHUNK // 256) + b"x" * BATCH_OVERHEAD
    assert log.append(data) == 0
    assert read_all(log, 0) == [(0, data)]


class Node:
    """A standby that keeps the batches that it applied."""

    def __init__(self, log: ReplicatedLog) -> None:
        self.log = log
        self.batches: list[bytes] = []
        self.standby = Standby(
            Follower(ClusterState("broker")),
            Timing(0.4, 0.3, 0.1),
            time.monotonic,
            lambda: time.time_ns() // 1_000_000,
            lambda: id(self),
            bytes(32),
        )

    def run(self, steps: Any) -> Any:
        """Carry out steps of the protocol (such as an append) on this node, and return their
        result."""
        return carry_out(steps, self.log, self._apply, time.sleep)

    def follow(self, offset: int) -> None:
        """Read and apply the records of the log up to an offset."""
        follower = self.standby.follower
        while follower.next < offset:
            self.run(follower.take(self.log.read(follower.next)))

    def _apply(self, step: Apply) -> None:
        if step.batch is not None:
            self.batches.append(step.batch.payload)


def test_standby_takes_over_from_a_silent_owner_with_all_of_its_batches(of_node: OfNode) -> None:
    one, two = Node(of_node("one")), Node(of_node("two"))
    owner: LogOwner = one.run(one.standby.follow())
    payloads = [b"", b"x" * 10, bytes(range(250))]
    for position, payload in enumerate(payloads, 1):
        one.run(owner.ship(payload, position, chunk_size=100))
    one.run(owner.beat())
    two.follow(owner.next)
    assert two.batches == payloads
    assert two.standby.state.epoch == owner.epoch == 1
    successor: LogOwner = two.run(two.standby.follow())
    assert successor.epoch == 2
    two.run(successor.ship(b"later", 4))
    fresh = Node(of_node("three"))
    fresh.follow(successor.next)
    assert fresh.standby.state == successor.judge.state
    assert fresh.batches == [*payloads, b"later"]
