"""Tests of the list of peers, the brokers with which the benchmarks compare Trellis.

Each peer must name the workloads that it does not support, with reasons, and its missing packages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from peers.brokers import NAMES, PEERS, chosen
from peers.brokers.relay import shape
from peers.command import main
from peers.peer import PeerBroker, Running, Tools
from peers.workloads import CASES
from peers.workloads import chosen as chosen_cases

from trellis.bench import amqp, mqtt
from trellis.bench.workloads import WORKLOADS


def refused(name: str) -> dict[str, str]:
    """Return the workloads that a peer does not support, with the reasons."""
    [peer] = chosen([name], Tools())
    return {case.name: why for case in CASES.values() if (why := peer.refusal(case))}


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Return the Tools of a simulated machine on which no peer is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for module in ("rabbitmq._SCRIPTS", "nats._DEBIAN", "aedes._PACKAGE"):
        monkeypatch.setattr(
            f"peers.brokers.{module}",
            tmp_path / "none" if not module.endswith("SCRIPTS") else str(tmp_path),
        )
    monkeypatch.setattr("peers.peer.SYSTEM", (str(tmp_path),))
    return Tools(installed=tmp_path / "none", trellis=None)


def test_similar_names_are_distinguished() -> None:
    assert len(set(NAMES)) == len(PEERS) == len({peer.title for peer in PEERS})


def test_every_workload_of_the_load_tool_is_measured() -> None:
    assert set(WORKLOADS) <= set(CASES)
    assert {case.half for case in CASES.values()} <= {"", *NAMES}


def test_trellis_can_do_all_workloads() -> None:
    assert refused("trellis") == {}


def test_a_peer_without_amqp_says_so() -> None:
    for name in ("mosquitto", "nats", "mochi", "aedes", "amqtt", "hivemq", "artemis"):
        assert set(refused(name).values()) == {"it does not support AMQP"}
        assert set(refused(name)) == {
            case.name for case in CASES.values() if "amqp" in case.protocols
        }


def test_a_version_without_qos_2_is_not_measured_with_it() -> None:
    for name in ("rabbitmq", "nats-debian"):
        assert refused(name)["mqtt-qos2"] == "this version does not support QoS 2"
        assert "mqtt-qos1" not in refused(name)
    assert "mqtt-qos2" not in refused("nats")


def test_lower_bounds_do_only_workloads_that_need_no_reading() -> None:
    can = set(CASES) - set(refused("relay"))
    assert {
        "mqtt-qos0",
        "mqtt-fan1000",
        "mqtt-50pub",
        "mqtt-pingpong",
        "amqp-auto",
        "amqp-fan10",
        "mqtt-qos0-half",
    } <= can
    assert not can & {
        "mqtt-qos1",
        "mqtt-16topics",
        "amqp-ack",
        "amqp-compete5",
        "amqp-bindings10k",
        "cross-mqtt-amqp",
        "amqp-ack-half",
    }


@pytest.mark.parametrize("name", ["amqp-auto", "amqp-1k", "amqp-64k", "amqp-fan10"])
def test_a_relay_forwards_packets_of_the_same_size_for_amqp(name: str) -> None:
    workload = WORKLOADS[name]
    stand_in, option, size = shape(CASES[name])
    assert option == "--size"
    assert WORKLOADS[stand_in].subscribers == workload.subscribers
    publication = amqp.publish(
        "bench-000000", "b000000.room.0000.temp", b"-" * workload.size, 131_072
    )
    assert len(mqtt.publish("b000000/room/0000/temp", b"-" * int(size))) == len(publication)


def test_unknown_names_are_rejected_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="nearest is mosquitto"):
        chosen(["moskito"], Tools())
    with pytest.raises(ValueError, match="nearest is mqtt-qos0"):
        chosen_cases(["mqtt-qos-0"])


def test_peers_and_workloads_keep_their_order() -> None:
    assert [peer.name for peer in chosen(["relay", "trellis"], Tools())] == ["trellis", "relay"]
    assert [case.name for case in chosen_cases(["amqp-auto", "mqtt-qos0"])] == [
        "mqtt-qos0",
        "amqp-auto",
    ]


@pytest.mark.parametrize("peer", PEERS, ids=NAMES)
def test_a_missing_peer_is_one_line_that_names_its_installation(
    peer: type[PeerBroker], nothing: Tools
) -> None:
    line = peer(nothing).missing()
    assert "\n" not in line
    assert re.search(
        r"apt-get install \S+|benchmarks/peers/install.sh \S+|make run|node is not on PATH", line
    )


def test_a_run_reports_skipped_peers_and_continues(
    nothing: Tools, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.command.tools", lambda trellis: nothing)
    assert main(["run", "--dry-run", "--peers", "mosquitto,nats"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].split(":")[:2] for line in lines[:2]] == [
        ["skipped", " mosquitto"],
        ["skipped", " nats"],
    ]
    assert lines[2] == "peers: none of the chosen peers is installed, see the lines above"


def test_a_missing_peer_is_fatal_with_require(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.brokers.mosquitto.MosquittoPeer.missing", lambda self: "")
    monkeypatch.setattr("peers.brokers.nats.NatsPeer.missing", lambda self: "nats is not installed")
    assert main(["run", "--dry-run", "--peers", "mosquitto,nats"]) == 0
    assert main(["run", "--dry-run", "--peers", "mosquitto,nats", "--require"]) == 1
    assert "--require" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--peers", "unknown"],
        ["run", "--workloads", "nothing"],
        ["run", "--trellis", "/none"],
        ["report", "README.md"],
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_broker_is_reached_by_url() -> None:
    assert Running(amqp=5, login="guest:guest@").amqp_url == "amqp://guest:guest@127.0.0.1:5/%2F"
    assert Running(mqtt=6).mqtt_url == "mqtt://127.0.0.1:6"
    assert Running(mqtt=6).amqp_url == ""
