"""Bridges to HiveMQ Community Edition and Apache Artemis, over MQTT 5 and MQTT 3.1.1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.bridge.running import BridgingBroker, KillablePair, Received, Recorder, bridge, wait_for
from tests.bridge.test_kill import Numbers, check_complete, publish_during_kills
from tests.javabrokers.server import PROGRAMS, JavaBroker

pytestmark = pytest.mark.long
SEED: Final = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))
TOPICS: Final = (
    's/# out 1 "" plant/',
    'c/# in 2 "" plant/',
    "both/# both 1",
    "zero/# out 0",
    "out/# out 1",
    "in/# in 1",
    "kept/# in 1",
)
#: Limits of the remote broker: unacknowledged messages, and bytes of a packet.
WINDOW: Final = 10
PACKET_MAX: Final = 2_000
#: Setting `remote_protocol` -> the version of MQTT that the bridge then speaks to these brokers.
VERSIONS: Final = {"auto": "MQTT 5", "3.1.1": "MQTT 3.1.1"}
#: Topics with characters that have a meaning in other protocols of these brokers. Two are left out:
#: Artemis does not deliver a message whose topic contains `::`, and it repeats a backslash.
TOPIC_NAMES: Final = (
    *("a.b/c", "x/*", "x/>", "*", ".", "..", "x:y", "x,y;z", "&/%2F", "~/`"),
    *(
        "x//y",
        "/first",
        "last/",
        " a b/ c",
        "x/$y",
        "\u00e4/\u20ac",
        "x/\U0001f600",
        "long/" + 300 * "l",
    ),
)
PAYLOAD_SIZES: Final = (0, 1, 200_000, 3_000_000)
#: Kills of one test.
KILLS: Final = 3
#: Seconds for which clients wait while a JVM starts on a busy machine.
START: Final = 240.0


class Pair(KillablePair):
    """A Trellis with a bridge to a broker on the JVM.

    Both brokers keep their data when they are killed.
    """

    def __init__(self, folder: Path, name: str, protocol: str) -> None:
        self.remote = JavaBroker(name, folder / "remote", WINDOW, PACKET_MAX)
        self.name, self.protocol = name, protocol
        before = Recorder(self.remote.port, "before")
        before.publish("kept/before", b"before", retain=True)
        before.close()
        # MQTT 3.1.1 tells the bridge none of the limits.
        limits = {} if protocol == "auto" else {"remote_packet_max": PACKET_MAX, "window": WINDOW}
        more: dict[str, Any] = {"remote_protocol": protocol, "reconnect_max": 1, **limits}
        text = bridge("j", self.remote.port, TOPICS, **more)
        super().__init__(folder, self.remote, "j", text)
        self.wait_up()

    def wait_up(self) -> dict[str, Any]:
        """Return the bridge's row as soon as its state is `up`; check the version of MQTT."""
        row = self.local.wait("j", lambda row: row["state"] == "up")
        assert row["protocol"] == VERSIONS[self.protocol]
        return row

    def wait_acknowledged(self) -> None:
        """Wait until the remote broker has acknowledged all of the bridge's messages with QoS 1."""

        def settled() -> bool:
            rows = self.local.request("GET", "trellis/sessions")
            [row] = [row for row in rows if row["client_id"] == "bridge.j"]
            return bool(row["queued"] == row["in_flight"] == 0)

        wait_for(settled)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in PROGRAMS],
)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of the remote broker."""
    return str(request.param)


@pytest.fixture(scope="module", params=VERSIONS)
def protocol(request: pytest.FixtureRequest) -> str:
    """Return the setting `remote_protocol` of the bridge."""
    return str(request.param)


@pytest.fixture(scope="module")
def shared(name: str, protocol: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Start a pair for all tests that kill no broker."""
    pair = Pair(tmp_path_factory.mktemp("pair"), name, protocol)
    yield pair
    pair.stop()


@pytest.fixture
def near(shared: Pair, unique: str) -> Iterator[Recorder]:
    """Connect a client of the local broker."""
    recorder = Recorder(shared.local.mqtt.port, f"near-{unique}", "c/#", "both/#")
    yield recorder
    recorder.close()


@pytest.fixture
def far(shared: Pair, unique: str) -> Iterator[Recorder]:
    """Connect a client of the remote broker."""
    filters = ("plant/s/#", "both/#", "zero/#")
    recorder = Recorder(shared.remote.port, f"far-{unique}", *filters, window=WINDOW)
    yield recorder
    recorder.close()


def check_no_loops(near: Recorder, far: Recorder) -> None:
    """Publish at both brokers, and check that each of the two clients gets each message once.

    The bridge copies the topics in both directions. Many of the messages are equal, and every
    second one has QoS 0.
    """
    for number in range(50):
        near.publish("both/n", b"%d" % (number % 3), number % 2)
        far.publish("both/n", b"%d" % (number % 3), number % 2)
    near.publish("both/end", b"near")
    far.publish("both/end", b"far")
    expected = sorted([*2 * [b"%d" % (number % 3) for number in range(50)], b"far", b"near"])
    for recorder in (near, far):
        got = [one.payload for one in recorder.take(102)]
        assert sorted(got) == expected
        assert recorder.messages.empty()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_are_copied_in_both_directions(near: Recorder, far: Recorder, qos: int) -> None:
    near.publish("s/1", b"out", qos)
    assert far.take(1) == [Received("plant/s/1", b"out", min(qos, 1), False)]
    far.publish("plant/c/1", b"in", qos)
    assert near.take(1) == [Received("c/1", b"in", min(qos, 1), False)]
    near.publish("zero/z", b"zero", qos)
    assert far.take(1) == [Received("zero/z", b"zero", 0, False)]


@pytest.mark.parametrize("direction", ["out", "in"])
def test_properties_are_copied(shared: Pair, near: Recorder, far: Recorder, direction: str) -> None:
    given: dict[str, Any] = {
        "ContentType": "text/plain",
        "ResponseTopic": "reply/to",
        "CorrelationData": b"\x01\x00\xff",
        "PayloadFormatIndicator": 1,
    }
    user = [("a", "1"), ("a", "2"), ("\u20ac", "")]
    source, topic, target = {"out": (near, "s/p", far), "in": (far, "plant/c/p", near)}[direction]
    payload = "\u20ac".encode()
    source.publish(topic, payload, MessageExpiryInterval=1_000, UserProperty=user, **given)
    message = target.next()
    assert message.payload == payload
    properties: Any = message.properties
    got = {key: getattr(properties, key) for key in given if hasattr(properties, key)}
    marked = list(getattr(properties, "UserProperty", []))
    if shared.protocol == "auto":
        assert got == given
        assert properties.MessageExpiryInterval in range(900, 1_001)
        assert marked[:3] == user
        del marked[:3]
    else:
        assert got == {}
    # Over MQTT 3.1.1, only a message to the local broker can have the mark of the bridge.
    names = ["trellis-bridge"] if shared.protocol == "auto" or direction == "in" else []
    assert [key for key, _ in marked] == names


def test_a_message_is_not_sent_back_and_an_equal_one_is_copied(
    shared: Pair, near: Recorder, far: Recorder
) -> None:
    check_no_loops(near, far)
    # With MQTT 5, No Local prevents the echoes; with MQTT 3.1.1, the bridge recognizes them.
    echoes = 0 if shared.protocol == "auto" else 51
    row = shared.local.wait("j", lambda row: row["received"] >= 51 and row["looped"] >= echoes)
    assert echoes or row["looped"] == 0


def test_retained_messages_are_retained_and_removed_at_the_remote_broker(
    shared: Pair, near: Recorder, far: Recorder, unique: str
) -> None:
    near.publish("both/kept", b"kept", retain=True)
    assert far.next().payload == b"kept"
    # Artemis stores a retained message after its delivery, but before its acknowledgement.
    shared.wait_acknowledged()
    late = Recorder(shared.remote.port, f"late-{unique}", "both/kept", "both/end")
    assert late.take(1) == [Received("both/kept", b"kept", 1, True)]
    near.publish("both/kept", b"", retain=True)
    assert late.take(1) == [Received("both/kept", b"", 1, True)]
    late.close()
    shared.wait_acknowledged()
    later = Recorder(shared.remote.port, f"later-{unique}", "both/kept", "both/end")
    near.publish("both/end", b"end")
    assert later.take(1) == [Received("both/end", b"end", 1, False)]
    later.close()


def test_the_bridge_observes_the_limits_of_the_remote_broker(
    shared: Pair, near: Recorder, far: Recorder
) -> None:
    near.publish("s/large", b"x" * (PACKET_MAX + 1))
    for number in range(300):
        near.client.publish("s/n", b"%d" % number, 1)
    # Artemis changes the order of messages of QoS 1 that are under way together.
    got = sorted(far.take(300))
    assert got == sorted(Received("plant/s/n", b"%d" % number, 1, False) for number in range(300))
    row = shared.local.wait("j", lambda row: row["refused"] == 1)
    assert row["reconnects"] == 0
    assert f"the broker accepts {PACKET_MAX}" in row["refusal"]


def test_the_remote_broker_waits_for_acknowledgements_of_the_bridge(
    shared: Pair, near: Recorder, far: Recorder
) -> None:
    payloads = sorted(b"%d" % number for number in range(1_000))
    for payload in payloads:
        far.client.publish("plant/c/many", payload, 1)
    assert [one.payload for one in near.take(1_000)] == payloads
    assert shared.local.links()["j"]["reconnects"] == 0
    assert near.messages.empty()


def test_retained_messages_of_the_remote_broker(shared: Pair, unique: str) -> None:
    late = Recorder(shared.local.mqtt.port, f"late-{unique}", "kept/#")
    assert late.take(1) == [Received("kept/before", b"before", 1, True)]
    # Artemis 2.40 ignores Retain As Published for filters with wildcards.
    retained = shared.protocol == "auto" and shared.name != "artemis"
    far = Recorder(shared.remote.port, f"far-{unique}")
    far.publish("kept/new", b"new", retain=True)
    assert late.take(1) == [Received("kept/new", b"new", 1, retained)]
    far.publish("kept/before", b"", retain=True)
    assert late.take(1) == [Received("kept/before", b"", 1, retained)]
    later = Recorder(shared.local.mqtt.port, f"later-{unique}", "kept/#")
    kept = (
        Received("kept/new", b"new", 1, True)
        if retained
        else Received("kept/before", b"before", 1, True)
    )
    assert later.take(1) == [kept]
    far.publish("kept/end", b"end")
    assert later.take(1) == [Received("kept/end", b"end", 1, False)]
    for recorder in (late, far, later):
        recorder.close()


@pytest.fixture
def pair(tmp_path: Path, name: str, protocol: str) -> Iterator[Pair]:
    """Start a pair for one test, which may kill its brokers."""
    pair = Pair(tmp_path, name, protocol)
    yield pair
    pair.stop()


@pytest.mark.parametrize("victim", ["remote", "local"])
def test_no_confirmed_message_is_lost_when_a_broker_is_killed(pair: Pair, victim: str) -> None:
    """Kill the broker `victim` several times while clients publish.

    Check that each confirmed message arrives, and that no later message is sent back.
    """
    far = Recorder(pair.remote.port, "far", "out/#", "both/#", patience=START)
    near = Recorder(pair.local.mqtt.port, "near", "in/#", "both/#", patience=START)
    outward = Numbers(pair.local.mqtt.port, "out/n", patience=START)
    inward = Numbers(pair.remote.port, "in/n", patience=START)
    publish_during_kills(outward, inward, KILLS, Random(SEED), lambda: pair.kill(victim))
    check_complete(far, outward.confirmed)
    check_complete(near, inward.confirmed)
    near.publish("both/begin", b"near")
    far.publish("both/begin", b"far")
    for recorder in (near, far):
        # Messages that arrive twice come before these.
        got = [b""]
        while sorted(got[-2:]) != [b"far", b"near"]:
            got.append(bytes(recorder.next().payload))
    check_no_loops(near, far)
    for recorder in (far, near):
        recorder.close()


def test_messages_wait_while_the_remote_broker_is_stopped(pair: Pair) -> None:
    far = Recorder(pair.remote.port, "far", "plant/s/#", patience=START)
    near = Recorder(pair.local.mqtt.port, "near")
    pair.remote.stop()
    pair.local.wait("j", lambda row: row["state"] == "connecting")
    for number in range(300):
        near.publish("s/n", b"%d" % number, 1 + number % 2)
    near.publish("s/n", b"transient", 0)
    pair.local.wait("j", lambda row: row["dropped"] == 1)
    pair.remote.start()
    pair.wait_up()
    payloads = sorted(b"%d" % number for number in range(300))
    assert [one.payload for one in far.take(300)] == payloads
    row = pair.local.wait("j", lambda row: row["sent"] == 300 and row["in_flight"] == 0)
    assert (row["dropped"], row["reconnects"]) == (1, 1)
    assert far.messages.empty()
    for recorder in (far, near):
        recorder.close()


@pytest.fixture
def remote(name: str, tmp_path: Path) -> Iterator[JavaBroker]:
    """Start a remote broker for the test's own bridges."""
    remote = JavaBroker(name, tmp_path / "remote")
    yield remote
    remote.stop()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_topics_and_payloads_of_each_kind(
    remote: JavaBroker, tmp_path: Path, protocol: str
) -> None:
    """Check that a bridge copies messages with unusual topics, and payloads of 0 bytes to 3 MB.

    The messages must arrive unchanged, in both directions.
    """
    text = bridge("j", remote.port, ["# both 1"], remote_protocol=protocol)
    local = BridgingBroker(tmp_path / "local", text)
    local.wait_up("j")
    near, far = (Recorder(port, "client", "#") for port in (local.mqtt.port, remote.port))
    for number, topic in enumerate(TOPIC_NAMES):
        for source, target in ((near, far), (far, near)):
            source.publish(topic, b"%d" % number, number % 3)
            assert source.take(1) == [Received(topic, b"%d" % number, number % 3, False)]
            assert target.take(1) == [Received(topic, b"%d" % number, min(number % 3, 1), False)]
    for size in PAYLOAD_SIZES:
        for source, target in ((near, far), (far, near)):
            source.publish("size", bytes(size))
            assert source.next().payload == target.next().payload == bytes(size)
    row = local.links()["j"]
    assert (row["refused"], row["dropped"], row["reconnects"]) == (0, 0, 0)
    for recorder in (near, far):
        recorder.close()
    local.stop()


def test_two_bridges_on_the_same_topics_do_not_loop(remote: JavaBroker, tmp_path: Path) -> None:
    """Check that each of two bridges of one broker copies each message once.

    A bridge must not copy the messages that the other bridge has copied.
    """
    text = "".join(bridge(name, remote.port, ["both/# both 1"]) for name in ("one", "two"))
    local = BridgingBroker(tmp_path / "local", text)
    local.wait_up("one", "two")
    near = Recorder(local.mqtt.port, "near", "both/#")
    far = Recorder(remote.port, "far", "both/#")
    for number in range(20):
        near.publish("both/n", b"near %d" % number)
        far.publish("both/n", b"far %d" % number)
    for name in ("one", "two"):
        local.wait(name, lambda row: (row["sent"], row["received"], row["looped"]) == (20, 20, 40))
    for recorder, own, other in ((near, b"near", b"far"), (far, b"far", b"near")):
        expected = [b"%s %d" % (own, number) for number in range(20)]
        expected += 2 * [b"%s %d" % (other, number) for number in range(20)]
        assert sorted(one.payload for one in recorder.take(60)) == sorted(expected)
        assert recorder.messages.empty()
        recorder.close()
    local.stop()


def test_two_brokers_exchange_messages_through_the_remote_broker(
    remote: JavaBroker, tmp_path: Path
) -> None:
    """Publish at two brokers that each have a bridge to the remote broker.

    Check that each message passes both bridges, and arrives once at the other broker.
    """
    text = {side: bridge(side, remote.port, ["both/# both 1"], max_hops=2) for side in ("a", "b")}
    brokers = {side: BridgingBroker(tmp_path / side, text[side]) for side in text}
    for side, broker in brokers.items():
        broker.wait_up(side)
    one, two = (Recorder(broker.mqtt.port, "client", "both/#") for broker in brokers.values())
    check_no_loops(one, two)
    for side, broker in brokers.items():
        broker.wait(side, lambda row: (row["sent"], row["received"], row["looped"]) == (51, 51, 0))
        broker.stop()
    one.close()
    two.close()
