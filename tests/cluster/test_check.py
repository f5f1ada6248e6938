"""`trellis cluster check` names each unsafe setting of Kafka, and creates the topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.replication.records import BEAT, CLAIM, Claim, ClusterState, LogRecord
from tests.cluster.conftest import OpenLog, cluster_on, created
from tests.cluster.programs import KafkaNodes, Kfake
from tests.cluster.test_faults import new_topic
from trellis.cli import main
from trellis.cluster.client_options import MESSAGE_MAX
from trellis.settings.cluster import ClusterSettings

#: Settings of a topic for which the check has no findings.
SAFE = {
    "cleanup.policy": "delete",
    "max.message.bytes": str(MESSAGE_MAX),
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


@pytest.fixture(scope="module")
def kfake() -> Iterator[Kfake]:
    """Start one kfake for this module, with the session timeout that the check recommends."""
    process = Kfake("broker.session.timeout.ms=2000")
    yield process
    process.close()


@pytest.fixture(autouse=True)
def _handlers_of_this_process() -> Iterator[None]:
    """Restore the handlers of log lines, which the command replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def check(
    kfake: Kfake | KafkaNodes, name: str, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, list[str]]:
    """Run `trellis cluster check`; return its exit code and the lines that it prints.

    In the lines, TOPIC and SERVERS stand for the name of the topic and the addresses of Kafka.
    """
    where = ["--cluster-servers", kfake.servers, "--cluster-name", name]
    code = main(["cluster", "check", *where, *flags])
    printed = capsys.readouterr().out.replace(f"topic 'trellis-{name}'", "TOPIC")
    return code, printed.replace(kfake.servers, "SERVERS").splitlines()


def test_absent_topic_is_created_on_request_and_is_safe(
    kfake: Kfake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create = "create it with `trellis cluster check --create`"
    assert check(kfake, name, capsys) == (1, [f"TOPIC does not exist: {create}"])
    safe = f"ok: TOPIC at SERVERS is safe for cluster '{name}'"
    assert check(kfake, name, capsys, "--create") == (0, ["created TOPIC", safe])
    assert check(kfake, name, capsys, "--create") == (0, [safe])
    assert check(kfake, name, capsys) == (0, [safe])
    code, lines = check(kfake, name, capsys, "--json")
    answer = json.loads("".join(lines))
    assert (code, answer["created"], answer["findings"]) == (0, False, [])


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        (
            "min.insync.replicas",
            "1",
            (
                "min.insync.replicas is 1, must be 2: confirmed messages are lost with one Kafka "
                "node; set it to 2 (nodes refuse this topic)"
            ),
        ),
        (
            "min.insync.replicas",
            "3",
            (
                "min.insync.replicas is 3 with 3 replicas: each lost Kafka node stops the log; "
                "set it to 2, with 3 replicas"
            ),
        ),
        (
            "cleanup.policy",
            "compact",
            (
                "cleanup.policy is compact, must be delete: compaction removes batches of the log; "
                "set it to delete (nodes refuse this topic)"
            ),
        ),
        (
            "retention.ms",
            "604800000",
            (
                "retention.ms is 604800000, must be -1: Kafka would remove records that a standby "
                "still needs; set it to -1, because Trellis trims the log itself "
                "(nodes refuse this topic)"
            ),
        ),
        (
            "retention.bytes",
            "1000000",
            (
                "retention.bytes is 1000000, must be -1: Kafka would remove records that a standby "
                "still needs; set it to -1, because Trellis trims the log itself "
                "(nodes refuse this topic)"
            ),
        ),
        (
            "unclean.leader.election.enable",
            "true",
            (
                "unclean.leader.election.enable is true, must be false: a Kafka node without all "
                "records may become the leader, and confirmed messages are lost; set it to false "
                "(nodes refuse this topic)"
            ),
        ),
        (
            "max.message.bytes",
            "1048588",
            (
                f"max.message.bytes is 1048588, below the {MESSAGE_MAX} of a whole chunk: large "
                f"batches need more requests; set it to {MESSAGE_MAX}"
            ),
        ),
    ],
)
def test_each_unsafe_setting_of_the_topic_is_one_line(
    kfake: Kfake,
    name: str,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    value: str,
    line: str,
) -> None:
    new_topic(cluster_on(kfake.servers, name), SAFE | {setting: value})
    assert check(kfake, name, capsys) == (1, [f"TOPIC: {line}"])
    code, lines = check(kfake, name, capsys, "--json")
    assert (code, json.loads("".join(lines))["findings"]) == (1, [f"TOPIC: {line}"])


def test_one_replica_and_several_partitions_are_unsafe(
    kfake: Kfake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    again = "create a new topic with `trellis cluster check --create`, and set cluster.topic to it"
    new_topic(cluster_on(kfake.servers, name), SAFE, partitions=4, replicas=1)
    assert check(kfake, name, capsys) == (
        1,
        [
            f"TOPIC: has 4 partitions, must have 1: {again}",
            (
                "TOPIC: its replicas are 1, must be 3: a lost Kafka node loses or stops the log; "
                f"{again}, or reassign its partition to 3 nodes (nodes refuse this topic)"
            ),
            (
                "TOPIC: min.insync.replicas is 2 with 1 replicas: each lost Kafka node stops the "
                "log; set it to 2, with 3 replicas"
            ),
        ],
    )


def test_topic_that_nodes_accept_for_a_trial_is_unsafe_nevertheless(
    kfake: Kfake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new_topic(cluster_on(kfake.servers, name), SAFE | {"min.insync.replicas": "1"})
    code, [line] = check(kfake, name, capsys, "--cluster-unsafe", "true")
    assert (code, line.endswith("node; set it to 2")) == (1, True)


def test_silence_below_the_session_timeout_of_kafka_is_unsafe(
    kfake: Kfake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    created(cluster_on(kfake.servers, name))
    flags = ("--cluster-silence", "1", "--cluster-lease", "0.7", "--cluster-beat", "0.15")
    assert check(kfake, name, capsys, *flags) == (
        1,
        [
            (
                "Kafka nodes 0, 1, 2: broker.session.timeout.ms is 2000, and cluster.silence is 1 "
                "s with a cluster.lease of 0.7 s: until Kafka has replaced a lost node, the broker "
                "stands still, and may close all connections; set cluster.silence to at least "
                "3.5 s and cluster.lease to at least 2.5 s"
            )
        ],
    )


def test_kafka_that_soon_forgets_repeated_records_is_unsafe(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kfake = Kfake("broker.session.timeout.ms=2000", "producer.id.expiration.ms=60000")
    try:
        created(cluster_on(kfake.servers, name))
        assert check(kfake, name, capsys) == (
            1,
            [
                (
                    "Kafka nodes 0, 1, 2: producer.id.expiration.ms is 60000, must be at least "
                    "600000: Kafka may forget which records a node has appended, and append a "
                    "repeated record again; set it to 86400000"
                )
            ],
        )
    finally:
        kfake.close()


def test_records_of_another_program_are_named(
    kfake: Kfake, name: str, open_log: OpenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    log.append(LogRecord(BEAT, 1, 2, 3).encode())
    log.append(b"{}")
    assert check(kfake, name, capsys) == (
        1,
        [
            (
                "TOPIC: the record at offset 1 is not a record of this version of Trellis (the "
                "record has 2 bytes, fewer than its header of 26 bytes); set cluster.topic to "
                "another topic"
            )
        ],
    )


def test_records_of_another_broker_are_named(
    kfake: Kfake, name: str, open_log: OpenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    log.append(Claim(CLAIM, 1, 2, 3, -1, ClusterState("invoices"), bytes(32)).encode())
    assert check(kfake, name, capsys) == (
        1,
        [
            (
                "TOPIC: the record at offset 0 belongs to the broker 'invoices', and this broker "
                f"is '{name}'; set cluster.topic to another topic"
            )
        ],
    )


def test_records_at_both_ends_of_a_long_log_are_read(
    kfake: Kfake, name: str, open_log: OpenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(created(cluster_on(kfake.servers, name)), "one")
    for _ in range(700):
        log.append(LogRecord(BEAT, 1, 2, 3).encode())
    assert check(kfake, name, capsys)[0] == 0
    log.append(b"x")
    code, lines = check(kfake, name, capsys)
    assert code == 1
    assert lines[0].startswith("TOPIC: the record at offset 700 is not a record of this version")


@pytest.mark.usefixtures("brief_requests")
def test_command_without_kafka_is_one_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for tool in ("check", "status"):
        assert main(["cluster", tool]) == 2
        assert capsys.readouterr().err == (
            "trellis: this broker is not a node of a cluster (cluster.servers is empty): give the "
            "settings of a node with --config FILE, or name the Kafka nodes with --cluster-servers "
            "HOST:PORT; `trellis cluster demo` starts a cluster for a trial\n"
        )
    flags = ["--cluster-servers", "127.0.0.1:1", "--cluster-name", name]
    for words in (["check"], ["status"], ["forget", "node-1"]):
        assert main(["cluster", *words, *flags]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("trellis: cannot ")
        assert f"topic 'trellis-{name}' at 127.0.0.1:1: " in line
        assert ": check that the nodes in cluster.servers run and can be reached (" in line
        assert "Connection refused" in line


def test_settings_of_the_command_are_read_from_a_file(
    kfake: Kfake, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        f'[cluster]\nname = "{name}"\nservers = "{kfake.servers}"\ntopic = "t-{name}"\n'
        "[cluster.options]\nsocket.timeout.ms = 4000\n"
    )
    assert main(["cluster", "check", "--create", "--config", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"created topic 't-{name}'\nok: topic 't-{name}' at")


@pytest.mark.long
@pytest.mark.xdist_group("kafka")
def test_real_kafka_with_the_recommended_settings_is_safe_until_a_node_is_lost(
    kafka_nodes: KafkaNodes, name: str, open_log: OpenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    safe = f"ok: TOPIC at SERVERS is safe for cluster '{name}'"
    assert check(kafka_nodes, name, capsys, "--create") == (0, ["created TOPIC", safe])
    log = open_log(ClusterSettings(name=name, servers=kafka_nodes.servers), "one")
    kafka_nodes.kill(3)
    assert log.append(b"a") == 0
    code, lines = check(kafka_nodes, name, capsys)
    assert code == 1
    assert lines[0] == (
        "TOPIC: 2 of 3 replicas are in sync: start the missing Kafka nodes, and wait until they "
        "have caught up"
    )
