"""Tests of faults of a Kafka cluster: lost answers, stopped nodes, changed leaders and topics.

Kafka is kfake, an in-memory Kafka, which makes these faults on request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from msgspec.structs import replace

from broker.replication.contract import CHUNK_SIZE, LogSpan, LogUnreachable, OutcomeUnknown
from broker.replication.errors import ReplicationError
from tests.cluster.conftest import OpenLog, cluster_on, created
from tests.cluster.programs import Kfake
from tests.cluster.test_contract import KAFKA, read_all
from tests.cluster.waiting import wait_for
from trellis.cluster import client_options, group_offsets, reader
from trellis.cluster.client_errors import LogShorter, TopicAbsent, TopicReplaced
from trellis.cluster.kafka_log import KafkaLog, group_name
from trellis.cluster.topic import KafkaTopic
from trellis.settings.cluster import ClusterSettings

Result = TypeVar("Result")

#: Times of a node (with `impatient`) for which the outcome of an append is unknown after 2.4 s.
SHORT = {"silence": 0.2, "lease": 0.15, "beat": 0.05}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time after which Trellis gives up an append that Kafka does not answer.

    After a given-up append, Trellis does not know whether the record is in the log.
    """
    monkeypatch.setattr(client_options, "DELIVERY_LEAST", 0.0)


def admin_of(cluster: ClusterSettings) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.servers})


def delete(cluster: ClusterSettings) -> None:
    """Delete the Kafka topic of a cluster."""
    KafkaTopic(cluster).delete()


def new_topic(
    cluster: ClusterSettings,
    settings: dict[str, str],
    partitions: int = 1,
    replicas: int = 3,
) -> None:
    """Create the topic of a cluster with other settings than Trellis uses."""
    topic = NewTopic(cluster.log_topic, partitions, replicas, config=settings)
    admin = admin_of(cluster)
    admin.create_topics([topic])[cluster.log_topic].result(10)


@pytest.mark.parametrize("error", ["REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"])
def test_record_whose_answer_is_lost_is_in_the_log_once(
    kfake: Kfake, name: str, open_log: OpenLog, error: str
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    assert log.append(b"a") == 0
    kfake.tell(f"fault 0 {error} 3")
    assert [log.append(data) for data in (b"b", b"c")] == [1, 2]
    assert read_all(log, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.usefixtures("impatient")
def test_append_that_the_log_does_not_commit_has_an_unknown_outcome(
    kfake: Kfake, name: str, open_log: OpenLog
) -> None:
    cluster = created(cluster_on(kfake.servers, name, **SHORT))
    log = open_log(cluster, "one")
    log.append(b"a")
    kfake.tell("fault 0 NOT_ENOUGH_REPLICAS -1")
    with pytest.raises(OutcomeUnknown) as unknown:
        log.append(b"lost")
    kfake.tell("clear")
    assert str(unknown.value) == (
        f"cannot append 4 bytes to topic '{cluster.log_topic}' at {cluster.servers}: Local: "
        "Message timed out (_MSG_TIMED_OUT): check that at least min.insync.replicas nodes of "
        "Kafka can be reached"
    )
    assert log.append(b"b") == 1
    assert read_all(log, 0) == [(0, b"a"), (1, b"b")]


def test_append_without_permission_has_an_unknown_outcome_and_an_advice(
    kfake: Kfake, name: str, open_log: OpenLog
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    kfake.tell("fault 0 TOPIC_AUTHORIZATION_FAILED 1")
    with pytest.raises(OutcomeUnknown, match=r"permit Read, Write, Describe, .* on the topic$"):
        log.append(b"a")
    assert log.append(b"b") == 0


@pytest.mark.usefixtures("impatient")
def test_stopped_cluster_is_unreachable_and_a_late_record_arrives_once(
    name: str, open_log: OpenLog
) -> None:
    kfake = Kfake()
    try:
        cluster = created(cluster_on(kfake.servers, name, **SHORT))
        log = open_log(cluster, "one")
        log.append(b"a")
        assert log.read(0).records == [(0, b"a")]
        kfake.pause()
        with pytest.raises(LogUnreachable, match=f"topic '{cluster.log_topic}' at 127"):
            log.read(1)
        with pytest.raises(OutcomeUnknown):
            log.append(b"late")
        kfake.resume()
        log.append(b"b")
        appended = [data for _, data in read_all(log, 0)]
        # The request with the record `late` was in flight, so the nodes may still append the
        # record.
        assert appended in ([b"a", b"b"], [b"a", b"late", b"b"])
    finally:
        kfake.close()


def test_tip_comes_from_the_new_leader_of_the_partition(
    kfake: Kfake, name: str, open_log: OpenLog
) -> None:
    cluster = created(cluster_on(kfake.servers, name))
    writer, standby = open_log(cluster, "one"), open_log(cluster, "two")
    for offset in range(4):
        kfake.tell(f"move {cluster.log_topic}")
        assert writer.append(b"x") == offset
        span = standby.read(offset)
        assert (span.records, span.tip) == ([(offset, b"x")], offset + 1)
        kfake.tell(f"move {cluster.log_topic}")
        assert standby.read(offset + 1) == LogSpan([], offset + 1)


def test_absent_topic_and_absent_kafka_are_told_apart(kfake: Kfake, name: str) -> None:
    cluster = cluster_on(kfake.servers, name)
    log = KafkaLog(cluster, "one")
    with pytest.raises(TopicAbsent) as absent:
        log.connect()
    log.close()
    assert str(absent.value) == (
        f"cannot describe topic '{cluster.log_topic}' at {cluster.servers}: Broker: Unknown topic "
        "or partition (UNKNOWN_TOPIC_OR_PART): create the topic with `trellis cluster check "
        "--create`"
    )


@pytest.mark.usefixtures("brief_requests")
def test_kafka_that_is_away_at_the_start_is_unreachable(name: str) -> None:
    kfake = Kfake()
    kfake.close()
    log = KafkaLog(cluster_on(kfake.servers, name), "one")
    with pytest.raises(LogUnreachable, match=r"check that the nodes in cluster\.servers run and"):
        log.connect()
    log.close()


@pytest.mark.long
@pytest.mark.usefixtures("brief_requests")
def test_errors_without_an_answer_have_the_reason_of_the_client_library(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "REQUEST_SECONDS", 2.0)
    cluster = cluster_on("127.0.0.1:1", name)
    topic, group = KafkaTopic(cluster), group_name(cluster, "one")
    log_reader = reader.KafkaReader(cluster, group, topic)
    requests: tuple[Callable[[], object], ...] = (
        topic.low,
        lambda: topic.report(group, 1, "report"),
        lambda: topic.reports([group]),
        lambda: log_reader.read(0),
    )
    for request in requests:
        with pytest.raises(LogUnreachable) as unreachable:
            request()
        assert "Connection refused" in "".join(unreachable.value.__notes__)
    log_reader.close()
    topic.close()


@pytest.mark.parametrize("kafka", ["kfake", pytest.param("kafka_node", marks=KAFKA)])
def test_topic_that_was_created_again_is_refused(
    kafka: str, request: pytest.FixtureRequest, name: str, open_log: OpenLog
) -> None:
    cluster = created(cluster_on(request.getfixturevalue(kafka).servers, name), replicas=1)
    log = open_log(cluster, "one")
    for _ in range(3):
        log.append(b"old")
    assert read_all(log, 0) == [(0, b"old"), (1, b"old"), (2, b"old")]
    delete(cluster)
    created(cluster, replicas=1)
    fresh = open_log(cluster, "two")
    assert fresh.topic_id != log.topic_id
    replaced = f"topic '{cluster.log_topic}' at .* was deleted and created again: its id is .*, "
    with pytest.raises(TopicReplaced, match=replaced):
        fresh.connect(log.topic_id)
    with pytest.raises(TopicReplaced, match=replaced):
        log.read(3)


def test_deleted_topic_is_unreachable(kfake: Kfake, name: str, open_log: OpenLog) -> None:
    cluster = created(cluster_on(kfake.servers, name))
    log = open_log(cluster, "one")
    log.append(b"a")
    assert read_all(log, 0) == [(0, b"a")]
    delete(cluster)
    with pytest.raises(LogUnreachable):
        log.read(1)


def test_log_that_stays_shorter_than_the_directory_is_refused(
    kfake: Kfake, name: str, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = created(cluster_on(kfake.servers, name))
    log = open_log(cluster, "one")
    log.append(b"a")
    with pytest.raises(LogUnreachable, match="ends at offset 1, but this node has read up to 5"):
        log.read(5)
    monkeypatch.setattr(reader, "SHORT_SECONDS", 0.0)
    with pytest.raises(LogShorter, match="ends at offset 1, but this node has read up to 5: rec"):
        log.read(5)
    assert log.read(1) == LogSpan([], 1)


def test_reader_of_trimmed_records_gets_the_first_records_of_the_log(
    kfake: Kfake, name: str, open_log: OpenLog
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    for data in (b"a", b"b", b"c"):
        log.append(data)
    log.trim(1)
    assert log.read_present(0).records == [(1, b"b"), (2, b"c")]
    assert log.read_present(2).records == [(2, b"c")]


def test_topic_with_several_partitions_is_refused(kfake: Kfake, name: str) -> None:
    cluster = cluster_on(kfake.servers, name)
    new_topic(cluster, {}, partitions=2)
    log = KafkaLog(cluster, "one")
    with pytest.raises(ReplicationError, match="has 2 partitions, must have 1: create a new topic"):
        log.connect()
    log.close()


def test_chunks_fit_the_messages_that_the_topic_accepts(
    kfake: Kfake, name: str, open_log: OpenLog
) -> None:
    cluster = replace(cluster_on(kfake.servers, name), unsafe=True)
    new_topic(cluster, {"max.message.bytes": "100000"})
    log = open_log(cluster, "one")
    assert log.chunk_size == 100_000 - 4096
    assert log.append(bytes(log.chunk_size)) == 0
    other = created(cluster_on(kfake.servers, f"{name}-other"))
    assert open_log(other, "one").chunk_size == CHUNK_SIZE


def failure_of_read(log: KafkaLog) -> str:
    """Return the text of the error of a read, which must fail."""
    with pytest.raises(LogUnreachable) as failure:
        log.read(0)
    return str(failure.value)


def test_error_of_a_read_without_records_names_the_last_error_of_kafka(
    name: str, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FETCH_SECONDS", 0.2)
    kfake = Kfake()
    try:
        log = open_log(created(cluster_on(kfake.servers, name)), "one")
        log.append(b"a")
        kfake.tell("fault 1 OFFSET_OUT_OF_RANGE -1")
        with pytest.raises(LogUnreachable, match=r"sent none within 0.2 s \(.*\): run `trellis"):
            log.read(0)
        wait_for(lambda: "ffset out of range" in failure_of_read(log), lambda: failure_of_read(log))
        kfake.tell("clear")
        assert read_all(log, 0) == [(0, b"a")]
    finally:
        kfake.close()


def test_reader_that_rests_goes_on_with_the_next_read(
    kfake: Kfake, name: str, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    log.append(b"a")
    assert log.read(0).records == [(0, b"a")]
    monkeypatch.setattr(reader, "IDLE_SECONDS", 0.0)
    log.append(b"b")
    assert log._reader._consumer.assignment() == []
    assert log.read(1).records == [(1, b"b")]


def test_invalid_option_of_the_client_is_one_line(name: str) -> None:
    cluster = ClusterSettings(name=name, servers="127.0.0.1:1", options={"sasl.word": "x"})
    with pytest.raises(ReplicationError) as refused:
        KafkaLog(cluster, "one")
    assert str(refused.value).startswith("cluster.options: Kafka's client refuses an option: ")
    assert "\n" not in str(refused.value)


#: The numbers of Kafka's requests that commit offsets and read them.
COMMIT, FETCH = 8, 9


@pytest.mark.parametrize("error", ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"])
@pytest.mark.parametrize("request_key", [COMMIT, FETCH])
def test_report_outlives_a_coordinator_that_moves_or_loads_its_groups(
    kfake: Kfake, name: str, error: str, request_key: int
) -> None:
    # A request of the admin client for offsets would end this process at NOT_COORDINATOR.
    cluster = created(cluster_on(kfake.servers, name))
    topic = KafkaTopic(cluster)
    group = group_name(cluster, "one")
    kfake.tell(f"fault {request_key} {error} 2")
    try:
        for offset in range(3):  # A request that gets the error may fail; the last ones succeed.
            try:
                topic.report(group, offset, "state")
                report = topic.reports([group])[group]
            except LogUnreachable:
                continue
        assert report == (2, "state")
    finally:
        kfake.tell("clear")
        topic.close()


def test_late_answer_to_a_report_does_not_undo_a_newer_report(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "REQUEST_SECONDS", 0.3)
    kfake = Kfake()
    try:
        cluster = created(cluster_on(kfake.servers, name))
        topic, group = KafkaTopic(cluster), group_name(cluster, "one")
        until(lambda: topic.report(group, 1, "state"))
        kfake.pause()
        late = report_until_unanswered(topic, group)
        with pytest.raises(LogUnreachable, match="cannot report the synced offset in topic"):
            topic.report(group, late + 1, "state")
        kfake.resume()
        until(lambda: topic.report(group, late + 2, "state"))
        assert until(lambda: topic.reports([group])) == {group: (late + 2, "state")}
        topic.close()
        again = KafkaTopic(cluster)
        assert until(lambda: again.reports([group])) == {group: (late + 2, "state")}
        again.close()
    finally:
        kfake.close()


def test_reports_are_closed_although_kafka_does_not_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "REQUEST_SECONDS", 0.3)
    kfake = Kfake()
    try:
        cluster = created(cluster_on(kfake.servers, name))
        topic, group = KafkaTopic(cluster), group_name(cluster, "one")
        until(lambda: topic.report(group, 1, "state"))
        kfake.pause()
        report_until_unanswered(topic, group)
        topic.close()  # Without a limit, this would not return before Kafka answers.
        with pytest.raises(LogUnreachable, match="this node closed the log"):
            topic.report(group, 3, "state")
    finally:
        kfake.resume()
        kfake.close()


def report_until_unanswered(topic: KafkaTopic, group: str) -> int:
    """Report offsets to a stopping Kafka; return the first offset whose report is not answered."""
    for offset in range(2, 60):
        try:
            topic.report(group, offset, "state")
        except LogUnreachable:
            return offset
    raise AssertionError("Kafka answers although it was stopped")


def until(attempt: Callable[[], Result]) -> Result:
    """Repeat an attempt while Kafka does not answer in time, and return its result."""
    for _ in range(60):
        try:
            return attempt()
        except LogUnreachable:
            continue
    raise AssertionError("Kafka does not answer")


def test_close_ends_an_append_that_waits(kfake: Kfake, name: str, open_log: OpenLog) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    log.append(b"a")
    kfake.tell("fault 0 NOT_ENOUGH_REPLICAS -1")
    try:
        with ThreadPoolExecutor() as pool:
            append = pool.submit(log.append, b"b")
            log.close()
            with pytest.raises(OutcomeUnknown, match=r"this node closed the log$"):
                append.result(10)
    finally:
        kfake.tell("clear")
    with pytest.raises(OutcomeUnknown, match=r"this node closed the log$"):
        log.append(b"c")
    with pytest.raises(LogUnreachable, match=r"this node closed the log$"):
        log.read(0)


@pytest.mark.usefixtures("impatient")
def test_log_lines_of_the_client_have_the_format_of_trellis(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    kfake = Kfake()
    kfake.close()
    with caplog.at_level(logging.INFO, "trellis"):
        log = KafkaLog(cluster_on(kfake.servers, name, **SHORT), "one")
        with pytest.raises(OutcomeUnknown):
            log.append(b"a")
        log.close()
    assert any(
        record.message.startswith("kafka client client=append text=")
        and "Connection refused" in record.message
        for record in caplog.records
    )
