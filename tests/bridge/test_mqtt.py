"""MQTT bridges between two brokers: topics, QoS, properties, retained messages, loops."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.amqp import channel, take
from tests.bridge.running import BridgingBroker, Received, RecordedPair, Recorder, bridge

TOPICS = ('s/# out 1 "" plant/', 'c/# in 2 "" plant/', "both/# both 1", "zero/# out 0")


class Pair(RecordedPair):
    """Two brokers with a bridge, and a client at each."""

    def __init__(self, folder: Path) -> None:
        self.remote = BridgingBroker(folder / "remote")
        text = bridge("b", self.remote.mqtt.port, TOPICS)
        self.local = BridgingBroker(folder / "local", text)
        self.local.wait_up("b")
        self.near = Recorder(self.local.mqtt.port, "near", "#")
        self.far = Recorder(self.remote.mqtt.port, "far", "#")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


@pytest.mark.parametrize(("sent", "copied"), [(0, 0), (1, 1), (2, 1)])
def test_messages_go_out_with_the_prefix_of_the_remote(pair: Pair, sent: int, copied: int) -> None:
    pair.near.publish("s/a/b", b"out", sent)
    assert pair.far.take(1) == [Received("plant/s/a/b", b"out", copied, False)]
    assert pair.near.take(1) == [Received("s/a/b", b"out", sent, False)]


@pytest.mark.parametrize(("sent", "copied"), [(0, 0), (1, 1), (2, 1)])
def test_messages_come_in_without_the_prefix(pair: Pair, sent: int, copied: int) -> None:
    pair.far.publish("plant/c/x", b"in", sent)
    assert pair.near.take(1) == [Received("c/x", b"in", copied, False)]
    assert pair.far.take(1) == [Received("plant/c/x", b"in", sent, False)]


def test_a_rule_of_qos_0_copies_with_qos_0(pair: Pair) -> None:
    pair.near.publish("zero/z", b"z", 2)
    assert pair.far.take(1) == [Received("zero/z", b"z", 0, False)]
    pair.near.take(1)


def test_a_rule_in_both_directions_does_not_send_messages_back(pair: Pair) -> None:
    pair.near.publish("both/n", b"1")
    pair.far.publish("both/f", b"2")
    # The last message of each direction: an echo of an earlier message would arrive before it.
    pair.near.publish("s/end", b"end")
    pair.far.publish("plant/c/end", b"end")
    near, far = pair.near.take(4), pair.far.take(4)
    assert sorted(one.payload for one in near) == [b"1", b"2", b"end", b"end"]
    assert [one.topic for one in far] == ["both/f", "both/n", "plant/c/end", "plant/s/end"]
    assert pair.near.messages.empty()
    assert pair.far.messages.empty()


def test_topics_without_a_rule_are_not_copied(pair: Pair) -> None:
    pair.near.publish("other", b"1")
    pair.near.publish("s/end", b"end")
    assert pair.far.take(1) == [Received("plant/s/end", b"end", 1, False)]
    pair.near.take(2)


def test_properties_and_payloads_are_copied(pair: Pair) -> None:
    pair.near.publish(
        "s/p",
        b"\x00\xff",
        ContentType="text/plain",
        ResponseTopic="reply/to",
        CorrelationData=b"\x01",
        PayloadFormatIndicator=0,
        MessageExpiryInterval=1_000,
        UserProperty=[("a", "1"), ("a", "2")],
    )
    message = pair.far.next()
    pair.near.take(1)
    given: Any = message.properties
    assert message.payload == b"\x00\xff"
    assert (given.ContentType, given.ResponseTopic) == ("text/plain", "reply/to")
    assert given.CorrelationData == b"\x01"
    assert given.MessageExpiryInterval in (999, 1_000)
    assert given.UserProperty[:2] == [("a", "1"), ("a", "2")]
    assert [name for name, _ in given.UserProperty[2:]] == ["trellis-bridge"]


def test_retained_messages_are_retained_and_removed_at_the_other_broker(pair: Pair) -> None:
    pair.near.publish("s/kept", b"kept", retain=True)
    assert pair.far.take(1)[0].retain
    late = Recorder(pair.remote.mqtt.port, "late", "plant/s/kept")
    assert late.take(1)[0].payload == b"kept"
    pair.near.publish("s/kept", b"", retain=True)
    assert late.take(1)[0].payload == b""
    late.close()
    later = Recorder(pair.remote.mqtt.port, "later", "plant/s/kept", "plant/s/end")
    pair.near.publish("s/end", b"end")
    assert later.take(1) == [Received("plant/s/end", b"end", 1, False)]
    later.close()
    pair.far.take_until(b"end")
    pair.near.take_until(b"end")


def test_the_list_and_the_metrics_count_the_copied_messages(pair: Pair) -> None:
    before = pair.local.links()["b"]
    for number in range(5):
        pair.near.publish("s/n", b"%d" % number)
    pair.far.publish("plant/c/n", b"in")
    # A message that is counted as sent may still wait for its acknowledgement at the source.
    row = pair.local.wait(
        "b",
        lambda row: (
            row["sent"] >= before["sent"] + 5
            and row["received"] > before["received"]
            and row["in_flight"] == 0
        ),
    )
    assert (row["kind"], row["refused"], row["looped"], row["error"]) == ("mqtt", 0, 0, "")
    pair.near.take(6)
    pair.far.take(6)
    listed = pair.local.trellis("list", "bridges", "--columns", "name,state")
    assert listed.stdout.split() == ["name", "state", "b", "up"]


def test_a_message_that_the_remote_refuses_for_now_is_published_again(tmp_path: Path) -> None:
    remote = BridgingBroker(tmp_path / "remote")
    far = channel(remote)
    far.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    far.queue_bind("full", "amq.topic", "full")
    far.queue_declare("free")
    far.queue_bind("free", "amq.topic", "free")
    table = bridge("b", remote.mqtt.port, ["# out 1"], reconnect_max=1)
    local = BridgingBroker(tmp_path / "local", table)
    local.wait_up("b")
    near = Recorder(local.mqtt.port, "near")
    bodies = [b"%d" % number for number in range(5)]
    for body in bodies:
        near.publish("full", body)
    row = local.wait("b", lambda row: "refuses messages with the topic 'full'" in row["error"])
    assert (row["state"], row["refused"]) == ("up", 0)
    # Messages with other topics do not wait.
    near.publish("free", b"passes")
    assert [body for _, body, _ in take(far, "free", 1)] == [b"passes"]
    assert [body for _, body, _ in take(far, "full", 5)] == bodies
    row = local.wait("b", lambda row: row["sent"] == 6 and row["error"] == "")
    assert (row["refused"], row["dropped"], row["in_flight"]) == (0, 0, 0)
    near.close()
    far.connection.close()
    local.stop()
    remote.stop()


class Refuser:
    """An MQTT 5 server that answers each PUBLISH of QoS 1 with the next reason code of `codes`.

    The server grants a Receive Maximum of `window`, and answers no PUBLISH until it has received
    `window` of them. `bodies` are the bodies of all received messages.
    """

    def __init__(self, codes: Iterator[int], window: int = 1) -> None:
        self._codes = codes
        self._window = window
        self.bodies: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        unanswered: list[bytes] = []
        with client, client.makefile("rb") as packets:
            while head := packets.read(1):
                length = shift = 0
                while (byte := packets.read(1)[0]) & 0x80:
                    length |= (byte & 0x7F) << shift
                    shift += 7
                packet = packets.read(length | byte << shift)
                if head[0] >> 4 == 1:  # CONNECT
                    client.sendall(b"\x20\x06\0\0\x03\x21" + self._window.to_bytes(2, "big"))
                elif head[0] >> 4 == 3:  # PUBLISH
                    after = 2 + int.from_bytes(packet[:2], "big")
                    unanswered.append(packet[after : after + 2])
                    # The body follows the packet identifier and the properties.
                    self.bodies.append(packet[after + 3 + packet[after + 2] :])
                    if len(self.bodies) >= self._window:
                        for identifier in unanswered:
                            client.sendall(b"\x40\x03" + identifier + bytes([next(self._codes)]))
                        unanswered.clear()
                elif head[0] >> 4 == 12:  # PINGREQ
                    client.sendall(b"\xd0\0")

    def close(self) -> None:
        self._listener.close()


def test_messages_behind_a_refused_message_of_their_topic_wait(tmp_path: Path) -> None:
    """Check that the bridge sends refused messages again before it sends later messages.

    When the server refuses messages 1 and 2 of the topic, the bridge has messages 3 and 4 already,
    but has not sent them.
    """
    remote = Refuser(chain([0x97, 0x97], repeat(0)), window=2)
    table = bridge("b", remote.port, ["# out 1"], reconnect_max=1)
    local = BridgingBroker(tmp_path, table)
    local.wait_up("b")
    near = Recorder(local.mqtt.port, "near")
    for body in (b"1", b"2", b"3", b"4"):
        near.publish("a", body)
    local.wait("b", lambda row: row["sent"] == 4)
    assert remote.bodies == [b"1", b"2", b"1", b"2", b"3", b"4"]
    near.close()
    local.stop()


@pytest.mark.parametrize(
    ("code", "attempts"), [(0x87, 1), pytest.param(0x83, 10, marks=pytest.mark.long)]
)
def test_the_bridge_gives_up_a_message_that_is_refused_for_good(
    tmp_path: Path, code: int, attempts: int
) -> None:
    remote = Refuser(repeat(code))
    local = BridgingBroker(tmp_path, bridge("b", remote.port, ["# out 1"], reconnect_max=1))
    local.wait_up("b")
    near = Recorder(local.mqtt.port, "near")
    near.publish("a", b"x")
    row = local.wait("b", lambda row: row["refused"] == 1)
    assert (row["in_flight"], row["error"], len(remote.bodies)) == (0, "", attempts)
    near.close()
    local.stop()
    remote.close()


def test_two_brokers_that_bridge_to_each_other_do_not_loop(tmp_path: Path) -> None:
    """Bridge two brokers to each other twice: each has a bridge for all topics in both directions.

    A message at one broker passes each of the two bridges once, so the message arrives at the
    other broker twice.
    """
    one = BridgingBroker(tmp_path / "one")
    two = BridgingBroker(
        tmp_path / "two", bridge("up", one.mqtt.port, ["# both 1"], client_id="two.up")
    )
    port = one.mqtt.port
    one.stop()
    one = BridgingBroker(
        tmp_path / "one",
        bridge("down", two.mqtt.port, ["# both 1"], client_id="one.down"),
        *("--mqtt-port", str(port)),
    )
    one.wait_up("down")
    two.wait_up("up")
    near = Recorder(one.mqtt.port, "near", "#")
    far = Recorder(two.mqtt.port, "far", "#")
    for number in range(20):
        near.publish("a", b"near %d" % number)
        far.publish("a", b"far %d" % number)
    for broker, name in ((one, "down"), (two, "up")):
        row = broker.wait(name, lambda row: row["looped"] >= 40)
        assert (row["sent"], row["received"], row["looped"]) == (20, 20, 40)
    for recorder, own, other in ((near, b"near", b"far"), (far, b"far", b"near")):
        numbers = range(20)
        expected = [b"%s %d" % (own, number) for number in numbers]
        expected += 2 * [b"%s %d" % (other, number) for number in numbers]
        got = recorder.take(60)
        assert sorted(one.payload for one in got) == sorted(expected)
        assert recorder.messages.empty()
        recorder.close()
    one.stop()
    two.stop()
