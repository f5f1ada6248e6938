"""Tests of a log that refuses records as too large while a node is active.

An operator may lower max.message.bytes of the topic at any time. After such a change, the active
node appends smaller chunks. While the log refuses small chunks, too, the node confirms nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from msgspec.structs import replace
from pika.exceptions import AMQPError

from broker.replication.contract import CHUNK_LEAST, AppendRefused, Fenced
from broker.replication.records import BATCH_OVERHEAD
from broker.replication.report import NodeReport
from broker.store.durable_batch import ShippingRefused
from tests.cluster.conftest import OpenLog, cluster_on, created
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, node_on_kafka, started
from tests.cluster.programs import Kfake
from tests.cluster.test_contract import KAFKA, read_all
from tests.cluster.test_ownership import QUEUE as DECLARED
from tests.cluster.test_ownership import TIMING, Owner, claim, follow, stored
from tests.cluster.test_topic_watch import set_topic
from tests.cluster.waiting import wait_for_line
from tests.replication.threaded_log import ThreadedLog
from trellis.cluster.client_options import MESSAGE_MAX, MESSAGE_OVERHEAD
from trellis.cluster.topic_safety import MESSAGE_LEAST

#: Size in bytes of a message that needs several of the smallest chunks.
LARGE = 500_000


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    owner = Owner(tmp_path / "owner")
    owner.write(DECLARED)
    return owner


def chunk_sizes(log: ThreadedLog, least: int = 10_000) -> list[int]:
    """Return the sizes in bytes of the chunks' payloads, without payloads below `least` bytes."""
    records = log.records.read(0).records
    sizes = [len(data) - BATCH_OVERHEAD for _, data in records]
    return [size for size in sizes if size >= least]


# -- the owner


def test_refused_batch_is_appended_in_smaller_chunks_and_confirmed(
    owner: Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner.log.accepted = 150_000
    owner.write(stored(b"x" * LARGE))
    assert owner.settled == [1, 2] and owner.ends == [] and owner.owner.epoch == 3
    assert max(chunk_sizes(owner.log)) < 150_000
    assert caplog.text.count("cluster_chunks_smaller") == 2
    owner.write(stored(b"y" * LARGE))  # The size is remembered, so no chunk is refused.
    assert owner.settled == [1, 2, 3] and owner.owner.epoch == 3
    home = follow(owner, tmp_path / "standby")
    assert home.queue("q").depth == 2 and home.opened.store.position == owner.store.position


def test_chunks_have_the_size_that_the_log_names(owner: Owner) -> None:
    def check(now: bool = False) -> None:
        owner.log.chunk_size = 90_000

    owner.log.check = check  # type: ignore[method-assign]
    owner.log.accepted = 90_000 + BATCH_OVERHEAD
    owner.write(stored(b"x" * LARGE))
    assert owner.owner.epoch == 2 and set(chunk_sizes(owner.log)[:-1]) == {90_000}
    owner.log.accepted, owner.log.chunk_size = float("inf"), 200_000
    owner.write(stored(b"y" * LARGE))  # The log names a larger size, so chunks grow again.
    assert max(chunk_sizes(owner.log)) == 200_000 and owner.ends == []


def test_log_that_refuses_the_second_chunk_gets_the_whole_batch_again(
    owner: Owner, tmp_path: Path
) -> None:
    owner.log.chunk_size = 200_000
    appended = owner.log.append

    def append(data: bytes) -> int:
        if len(data) > 150_000 and owner.log.records.tip > 2:
            owner.log.accepted = 150_000  # An operator lowers the limit between two chunks.
        return appended(data)

    owner.log.append = append  # type: ignore[method-assign]
    owner.write(stored(b"x" * LARGE))
    assert chunk_sizes(owner.log)[:2] == [200_000, 100_000]
    assert owner.settled == [1, 2] and owner.ends == []
    assert follow(owner, tmp_path / "standby").queue("q").depth == 1


def test_owner_confirms_nothing_while_the_log_refuses_small_chunks(
    owner: Owner, tmp_path: Path
) -> None:
    batch, size = owner.take(stored(b"x" * LARGE)), owner.local()
    owner.log.accepted = 1_000
    for _ in range(3):
        with pytest.raises(ShippingRefused, match=r"cannot append \d+ bytes: too large"):
            batch.write()
    owner.clock.now += TIMING.beat
    owner.ownership._beat()
    assert owner.settled == [1] and owner.local() == size and owner.ends == []
    assert owner.ownership.may_act()  # Small records prove that the node owns the log.
    owner.log.accepted = CHUNK_LEAST + BATCH_OVERHEAD
    batch.write()
    owner.store.written(batch)
    assert owner.settled == [1, 2] and owner.ends == []
    assert follow(owner, tmp_path / "standby").queue("q").depth == 1


def refuse_large(owner: Owner, land: Callable[[bytes], None]) -> None:
    """Let the log refuse records of more than LARGE bytes, and call `land` with each of them.

    If `land` appends a refused record, immediately or later, the log has this record nevertheless.
    The same happens if an earlier attempt succeeded, and only its answer was lost.
    """
    appended = owner.log.append

    def append(data: bytes) -> int:
        if len(data) > LARGE:
            land(data)
            raise AppendRefused("too large", len(data))
        return appended(data)

    owner.log.append = append  # type: ignore[method-assign]


def test_owner_ends_if_the_log_has_the_refused_record(owner: Owner) -> None:
    def land(data: bytes) -> None:
        owner.log.records.append(data)

    refuse_large(owner, land)
    batch, size = owner.take(stored(b"x" * LARGE)), owner.local()
    with pytest.raises(Fenced, match="Kafka had refused that record as too large"):
        batch.write()
    assert owner.settled == [1] and owner.local() == size and len(owner.ends) == 1
    assert not owner.ownership.may_act()


def test_refused_record_that_reaches_the_log_later_is_void(owner: Owner, tmp_path: Path) -> None:
    late: list[bytes] = []
    refuse_large(owner, late.append)
    owner.write(stored(b"x" * LARGE))
    for data in late:
        owner.log.records.append(data)
    owner.write(stored(b"y"))
    assert owner.settled == [1, 2, 3] and owner.ends == []
    assert follow(owner, tmp_path / "standby").queue("q").depth == 2


def test_owner_that_another_node_deposed_ends_when_it_claims_again(owner: Owner) -> None:
    owner.log.accepted = 1_000
    batch = owner.take(stored(b"x" * LARGE))
    with pytest.raises(ShippingRefused):
        batch.write()
    claim(owner.log, owner.owner.epoch + 1)
    with pytest.raises(Fenced, match="another node owns the replicated log"):
        batch.write()
    assert owner.settled == [1] and len(owner.ends) == 1


def test_owner_whose_beats_are_refused_serves_no_client_and_goes_on_later(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    owner.log.accepted = 10
    for _ in range(5):
        owner.clock.now += TIMING.beat
        owner.ownership._beat()
    assert not owner.ownership.may_act() and owner.ends == []
    assert caplog.text.count("cluster_beats_refused") == 1
    owner.log.accepted = float("inf")
    owner.ownership._beat()
    assert owner.ownership.may_act()
    owner.write(stored())
    assert owner.settled == [1, 2] and owner.ends == []


def test_owner_ends_if_the_claim_for_its_successor_is_refused(owner: Owner) -> None:
    owner.log.accepted = 10
    with pytest.raises(Fenced, match="the successor may own the replicated log"):
        owner.ownership.hand_over(NodeReport(1, nonce=7))
    assert len(owner.ends) == 1 and not owner.ownership.may_act()


# -- Kafka


@pytest.mark.parametrize(
    ("program", "setting"),
    [
        ("kfake", "max.message.bytes"),
        pytest.param("kafka_node", "max.message.bytes", marks=KAFKA),
        pytest.param("kafka_node", "segment.bytes", marks=KAFKA),
    ],
)
def test_record_that_the_topic_does_not_accept_is_not_appended(
    request: pytest.FixtureRequest, open_log: OpenLog, name: str, program: str, setting: str
) -> None:
    servers = request.getfixturevalue(program).servers
    cluster = created(cluster_on(servers, name), 3 if program == "kfake" else 1)
    log = open_log(cluster, "one")
    assert log.append(b"a") == 0
    set_topic(cluster, setting, "1048576")
    with pytest.raises(AppendRefused, match=rf"raise {setting} of the topic$") as refused:
        log.append(bytes(2 << 20))
    assert refused.value.size == 2 << 20
    assert log.append(b"b") == 1
    assert read_all(log, 0) == [(0, b"a"), (1, b"b")]
    log.check(now=True)
    if setting == "max.message.bytes":
        assert log.chunk_size == 1048576 - MESSAGE_OVERHEAD and log.refusal == ""
        assert log.append(bytes(log.chunk_size + BATCH_OVERHEAD)) == 2


def test_record_that_the_client_library_refuses_is_not_sent(
    kfake: Kfake, name: str, open_log: OpenLog
) -> None:
    cluster = created(cluster_on(kfake.servers, name))
    log = open_log(replace(cluster, options={"message.max.bytes": 100_000}), "one")
    with pytest.raises(AppendRefused, match="MSG_SIZE_TOO_LARGE"):
        log.append(bytes(200_000))
    assert log.append(b"a") == 0


@pytest.mark.long
def test_active_node_goes_on_when_max_message_bytes_is_lowered_and_mended(
    kfake: Kfake, name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    cluster = created(cluster_on(kfake.servers, name, 3.5, 2.5, 0.3))
    program = "tests.cluster.watchful_node"
    for node_name, state in (("first", "active"), ("second", "following")):
        started(nodes, node_on_kafka(cluster, tmp_path / node_name, program=program), state)
    first, second = nodes
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish_large(channel, b"1")
    set_topic(cluster, "max.message.bytes", "200000")
    publish_large(channel, b"2")
    assert "cluster_chunks_smaller" in first.log
    set_topic(cluster, "max.message.bytes", "1000")
    confirmed = threading.Event()

    def publish_more() -> None:
        with suppress(AMQPError):
            publish_large(channel, b"3")
            confirmed.set()

    threading.Thread(target=publish_more, daemon=True).start()
    wait_for_line(
        first, f"store_blocked reason=\"topic 'trellis-{name}' has max.message.bytes=1000"
    )
    wait_for_line(first, f"max.message.bytes is 1000, must be at least {MESSAGE_LEAST}")
    assert f"--add-config max.message.bytes={MESSAGE_MAX}" in first.log
    assert not confirmed.is_set() and first.process.poll() is None
    set_topic(cluster, "max.message.bytes", str(MESSAGE_MAX))
    assert confirmed.wait(PATIENCE), first.log
    wait_for_line(first, "cluster_safe")
    first.kill()
    second.wait_for("ready")
    again = second.channel()
    bodies = [again.basic_get(QUEUE, auto_ack=True)[2] for _ in range(3)]
    assert [body and body[:1] for body in bodies] == [b"1", b"2", b"3"]


def publish_large(channel: pika.adapters.blocking_connection.BlockingChannel, body: bytes) -> None:
    """Publish a large persistent message, and wait for its confirm."""
    persistent = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("", QUEUE, body + bytes(LARGE), persistent, mandatory=True)
