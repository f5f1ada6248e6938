"""Tests of a topic whose settings become unsafe while nodes run, and are mended again."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from msgspec.structs import replace
from pika.exceptions import AMQPError

from broker.replication.contract import LogUnreachable
from broker.store.durable_batch import ShippingRefused
from tests.cluster.conftest import cluster_on, created
from tests.cluster.nodes import (
    PATIENCE,
    QUEUE,
    NodeProcess,
    consume,
    node_on_kafka,
    publish,
    started,
)
from tests.cluster.programs import Kfake
from tests.cluster.test_commands import command
from tests.cluster.test_faults import admin_of
from tests.cluster.test_ownership import QUEUE as DECLARED
from tests.cluster.test_ownership import Clock, Owner, stored
from tests.cluster.waiting import wait_for_line
from tests.source_tree import ROOT
from trellis.cluster.topic import KafkaTopic
from trellis.cluster.topic_safety import TopicFinding, mending_command
from trellis.cluster.topic_watch import CHECK_SECONDS, REFUSED_SECONDS, TopicWatch
from trellis.settings.cluster import ClusterSettings

#: A setting of the topic, an unsafe value, and text of the finding.
LOSSY = ("min.insync.replicas", "1", "min.insync.replicas is 1, must be 2")


def set_topic(cluster: ClusterSettings, name: str, value: str) -> None:
    """Change one setting of the topic, as Kafka's command kafka-configs.sh --alter does."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, cluster.log_topic, incremental_configs=[entry])
    admin = admin_of(cluster)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE)


def test_the_page_shows_a_command_as_the_program_prints_it() -> None:
    cluster = ClusterSettings(name="orders", servers="kafka-1:9092")
    finding = TopicFinding("min.insync.replicas", "", mend="min.insync.replicas=2")
    page = (ROOT / "docs" / "high-availability.md").read_text()
    assert f"    {mending_command(cluster, finding)}\n" in page


class Watched:
    """A topic that is safe at first, and its watch, whose clock the test sets."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self.cluster, self.clock = cluster, Clock()
        self.watch = TopicWatch(KafkaTopic(cluster), cluster, [], self.clock)

    def look(self, seconds: float) -> str:
        """Advance the clock, and let the watch look.

        Return why no batch may be appended to the topic; "" if batches may be appended.
        """
        self.clock.now += seconds
        self.watch.look()
        return self.watch.refusal


@pytest.fixture
def watched(kfake: Kfake, name: str) -> Watched:
    return Watched(created(cluster_on(kfake.servers, name)))


@pytest.mark.parametrize(
    ("setting", "value", "safe", "text"),
    [
        (LOSSY[0], LOSSY[1], "2", LOSSY[2]),
        ("cleanup.policy", "compact", "delete", "compaction removes batches of the log"),
        ("retention.ms", "1000", "-1", "retention.ms is 1000, must be -1"),
        ("unclean.leader.election.enable", "true", "false", "must be false: a Kafka node without"),
    ],
)
def test_lossy_setting_is_refused_and_accepted_once_it_is_mended(
    watched: Watched,
    setting: str,
    value: str,
    safe: str,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "trellis")
    set_topic(watched.cluster, setting, value)
    assert watched.look(CHECK_SECONDS - 1) == ""
    assert text in watched.look(1)
    assert f"--add-config {setting}={safe}" in caplog.text
    assert caplog.text.count("cluster_topic_refused") == 1
    set_topic(watched.cluster, setting, safe)
    assert text in watched.look(REFUSED_SECONDS - 1)
    assert watched.look(1) == ""
    assert caplog.text.count("cluster_safe") == 1
    assert caplog.text.count("cluster_topic_refused") == 1


def test_other_unsafe_setting_is_logged_once_and_not_refused(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    set_topic(watched.cluster, "min.insync.replicas", "3")
    for _ in range(3):
        assert watched.look(CHECK_SECONDS) == ""
    assert caplog.text.count("cluster_unsafe") == 1
    assert "--add-config min.insync.replicas=2" in caplog.text


def test_setting_that_changes_from_one_unsafe_value_to_another_is_not_logged_as_safe(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trellis")
    set_topic(watched.cluster, *LOSSY[:2])
    assert watched.look(CHECK_SECONDS) != ""
    set_topic(watched.cluster, LOSSY[0], "3")
    assert watched.look(REFUSED_SECONDS) == ""
    assert "min.insync.replicas is 3 with 3 replicas" in caplog.text
    assert "cluster_safe" not in caplog.text


def test_trial_refuses_only_a_topic_on_which_the_log_cannot_work(
    kfake: Kfake, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(replace(created(cluster_on(kfake.servers, name)), unsafe=True))
    set_topic(watched.cluster, *LOSSY[:2])
    assert watched.look(CHECK_SECONDS) == ""
    assert "cluster_unsafe" in caplog.text and LOSSY[2] in caplog.text
    set_topic(watched.cluster, "cleanup.policy", "compact")
    assert "compaction" in watched.look(CHECK_SECONDS)


@pytest.mark.usefixtures("brief_requests")
def test_result_of_the_last_check_stays_in_force_while_kafka_is_away(name: str) -> None:
    kfake = Kfake()
    try:
        watched = Watched(created(cluster_on(kfake.servers, name)))
        set_topic(watched.cluster, *LOSSY[:2])
        refused = watched.look(CHECK_SECONDS)
    finally:
        kfake.close()
    with pytest.raises(LogUnreachable):
        watched.look(REFUSED_SECONDS)
    assert watched.watch.refusal == refused != ""


def test_batch_waits_while_the_topic_is_refused_and_is_shipped_once(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "owner")
    owner.log.refusal = "the topic can lose it"
    batch, tip = owner.take(DECLARED, stored()), owner.log.records.tip
    for _ in range(3):
        with pytest.raises(ShippingRefused, match="the topic can lose it"):
            batch.write()
    assert owner.log.records.tip == tip and owner.local() == 0
    owner.log.refusal = ""
    batch.write()
    owner.store.written(batch)
    assert owner.log.records.tip == tip + 1
    assert owner.settled == [1, 2] and owner.ends == []


@pytest.mark.long
def test_nodes_confirm_nothing_until_the_topic_is_mended(
    kfake: Kfake, name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    cluster = created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))
    program = "tests.cluster.watchful_node"
    for node_name, state in (("first", "active"), ("second", "following")):
        started(nodes, node_on_kafka(cluster, tmp_path / node_name, program=program), state)
    first, second = nodes
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(20))
    set_topic(cluster, *LOSSY[:2])
    for node in nodes:
        wait_for_line(node, "cluster_topic_refused")
    confirmed = threading.Event()

    def publish_more() -> None:
        with suppress(AMQPError):  # The test kills the first node.
            publish(channel, range(20, 30))
            confirmed.set()

    threading.Thread(target=publish_more, daemon=True).start()
    wait_for_line(first, f"store_blocked reason=\"topic 'trellis-{name}' can lose")
    code, output, _ = command(cluster, "status")
    assert code == 0 and "the nodes confirm no message until the topic is corrected" in output
    assert f"--entity-name trellis-{name} --add-config min.insync.replicas=2" in output
    assert not confirmed.is_set()
    first.kill()  # The standby takes over, and confirms nothing either.
    second.wait_for("ready")
    channel = second.channel()
    threading.Thread(target=publish_more, daemon=True).start()
    wait_for_line(second, "store_blocked")
    assert not confirmed.is_set()
    set_topic(cluster, LOSSY[0], "2")
    assert confirmed.wait(PATIENCE), second.log
    assert "cluster_safe" in second.log
    assert consume(second.channel(), 20) == list(range(20))
