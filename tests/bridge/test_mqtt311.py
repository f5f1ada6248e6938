"""MQTT bridges that speak MQTT 3.1.1, from the start or after a refusal of MQTT 5."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.addresses import free_port
from tests.bridge.running import (
    PATIENCE,
    BridgingBroker,
    Received,
    RecordedPair,
    Recorder,
    bridge,
)
from tests.broker import ROOT, environment
from trellis.parent_process import end_with_parent

TOPICS = ('s/# out 1 "" plant/', 'c/# in 2 "" plant/', "both/# both 1")


class Pair(RecordedPair):
    """Two brokers with a bridge that speaks MQTT 3.1.1, and a client at each."""

    def __init__(self, folder: Path) -> None:
        self.remote = BridgingBroker(folder / "remote")
        self.far = Recorder(self.remote.mqtt.port, "far", "#")
        self.far.publish("both/kept", b"before", retain=True)
        self.far.take(1)
        text = bridge("b", self.remote.mqtt.port, TOPICS, remote_protocol="3.1.1", window=20)
        self.local = BridgingBroker(folder / "local", text)
        self.local.wait_up("b")
        self.near = Recorder(self.local.mqtt.port, "near", "#")
        self.retained = self.near.take(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


def test_the_first_session_gets_the_retained_messages(pair: Pair) -> None:
    assert pair.retained == [Received("both/kept", b"before", 1, True)]
    row = pair.local.links()["b"]
    assert (row["protocol"], row["state"], row["error"]) == ("MQTT 3.1.1", "up", "")


@pytest.mark.parametrize(("sent", "copied"), [(0, 0), (1, 1), (2, 1)])
def test_messages_are_copied_in_both_directions(pair: Pair, sent: int, copied: int) -> None:
    pair.near.publish("s/a", b"out", sent, ContentType="text/plain")
    message = pair.far.next()
    assert (message.topic, message.payload, message.qos) == ("plant/s/a", b"out", copied)
    assert not hasattr(message.properties, "ContentType"), "MQTT 3.1.1 has no properties"
    pair.far.publish("plant/c/x", b"in", sent)
    got = [pair.near.next() for _ in range(2)]
    assert sorted(one.topic for one in got) == ["c/x", "s/a"]
    [copy] = [one for one in got if one.topic == "c/x"]
    assert (copy.payload, copy.qos) == (b"in", copied)
    # The mark `trellis-bridge` says that a bridge has copied the message. Bridges with MQTT 5 read
    # it.
    properties: Any = copy.properties
    assert [name for name, _ in properties.UserProperty] == ["trellis-bridge"]
    pair.far.take(1)


def test_a_message_is_not_sent_back_and_an_equal_one_is_copied(pair: Pair) -> None:
    """Publish equal messages at both brokers.

    Check that the client at each broker gets each message once: no broker gets its own messages
    back, and no copy of an equal message is taken for an echo.
    """
    before = pair.local.links()["b"]["looped"]
    for number in range(50):
        pair.near.publish("both/n", b"%d" % (number % 3), number % 3)
        pair.far.publish("both/n", b"%d" % (number % 3), number % 3)
    pair.near.publish("both/end", b"near")
    pair.far.publish("both/end", b"far")
    for recorder in (pair.near, pair.far):
        got = recorder.take(102)
        assert sorted(one.payload for one in got if one.topic == "both/end") == [b"far", b"near"]
        assert recorder.messages.empty()
    pair.local.wait("b", settled(before + 51))


def test_a_retained_message_is_retained_and_removed_at_the_remote_broker(pair: Pair) -> None:
    pair.near.publish("s/kept", b"kept", retain=True)
    assert pair.far.take(1)[0].retain
    pair.near.publish("s/kept", b"", retain=True)
    assert pair.far.take(1)[0].payload == b""
    pair.near.take(2)


def test_a_broker_that_sends_too_many_messages_must_wait(pair: Pair) -> None:
    """Check that 2,000 messages of the remote broker arrive, although their number is not limited.

    In MQTT 3.1.1, the bridge cannot send a Receive Maximum, so it stops reading while `window`
    messages are not acknowledged.
    """
    for number in range(2_000):
        pair.far.client.publish("plant/c/many", b"%d" % number, 1)
    pair.far.publish("plant/c/many", b"end")
    assert sorted(pair.near.take_until(b"end")) == sorted(
        [*(b"%d" % number for number in range(2_000)), b"end"]
    )
    assert pair.local.wait("b", lambda row: row["in_flight"] == 0)["reconnects"] == 0
    pair.far.take(2_001)


def test_a_broker_that_refuses_mqtt_5(tmp_path: Path) -> None:
    """Check a bridge to a broker that refuses MQTT 5 with MQTT 3.1.1's return code 1.

    With `remote_protocol` "auto", a bridge must continue with MQTT 3.1.1. With `remote_protocol`
    "5", the bridge's error must recommend "auto".
    """
    remote = BridgingBroker(tmp_path / "remote")
    old = OldBroker(remote.mqtt.port)
    text = bridge("a", old.port, ["both/# both 1"], remote_protocol="auto", reconnect_max=1)
    text += bridge("five", old.port, ["s/# out 1"], reconnect_max=1)
    local = BridgingBroker(tmp_path / "local", text)
    row = local.wait("five", lambda row: "refused MQTT 5" in row["error"])
    assert 'set remote_protocol to "auto"' in row["error"]
    assert local.wait("a", lambda row: row["state"] == "up")["protocol"] == "MQTT 3.1.1"
    assert "the bridge tries MQTT 3.1.1 next" in local.log
    near = Recorder(local.mqtt.port, "near", "both/#")
    far = Recorder(remote.mqtt.port, "far", "both/#")
    for life in range(2):
        near.publish("both/n", b"out%d" % life)
        far.publish("both/f", b"in%d" % life)
        for recorder in (near, far):
            got = {recorder.next().payload for _ in range(2)}
            assert got == {b"out%d" % life, b"in%d" % life}
        # Only messages that are not acknowledged yet are repeated after a lost connection.
        local.wait("a", settled(life + 1))
        old.disconnect()
        local.wait("a", lost(life + 1))
        # The broker has refused MQTT 5 once, so the bridge does not try it again.
        assert local.wait("a", lambda row: row["state"] == "up")["protocol"] == "MQTT 3.1.1"
    assert old.refused == {"a": 1, "five": old.refused["five"]}
    for recorder in (near, far):
        recorder.close()
    local.stop()
    remote.stop()
    old.stop()


@pytest.mark.long
def test_messages_wait_while_amqtt_is_away(tmp_path: Path) -> None:
    """Check that messages for amqtt wait between a kill and the next start of its process.

    amqtt does not answer a CONNECT of MQTT 5. With `remote_protocol` "auto", a bridge must change
    to MQTT 3.1.1. With `remote_protocol` "5", the bridge's error must recommend "3.1.1".
    """
    port = free_port()
    text = bridge("a", port, ["both/# both 1"], remote_protocol="auto", reconnect_max=1)
    text += bridge("five", port, ["s/# out 1"], reconnect_max=1)
    server = Amqtt(port)
    local = BridgingBroker(tmp_path / "local", text)
    near = Recorder(local.mqtt.port, "near", "both/#")
    row = local.wait("five", lambda row: "has not accepted" in row["error"])
    assert 'if it speaks only MQTT 3.1.1, set remote_protocol to "3.1.1"' in row["error"]
    for life in (b"1", b"2"):
        row = local.wait("a", lambda row: row["state"] == "up")
        assert row["protocol"] == "MQTT 3.1.1"
        far = Recorder(port, "far" + life.decode(), "both/#", old=True)
        near.publish("both/n", b"out" + life)
        # The messages that waited may arrive before the client has subscribed.
        assert b"out" + life in far.take_until(b"out" + life)
        far.publish("both/f", b"in" + life)
        assert [near.next().payload for _ in range(2)] == [b"out" + life, b"in" + life]
        far.close()
        if life == b"1":
            server.kill()
            local.wait("a", lambda row: row["state"] == "connecting")
            near.publish("both/n", b"waiting")
            assert near.next().payload == b"waiting"
            server = Amqtt(port)
    local.wait("a", lambda row: (row["sent"], row["received"], row["in_flight"]) == (3, 2, 0))
    assert near.messages.empty()
    near.close()
    local.stop()
    server.kill()


def settled(looped: int) -> Callable[[dict[str, Any]], bool]:
    """Return a condition: this number of echoes has come, and all messages are acknowledged."""
    return lambda row: row["looped"] == looped and row["in_flight"] == 0


def lost(count: int) -> Callable[[dict[str, Any]], bool]:
    """Return a condition: this number of connections was lost."""
    return lambda row: row["reconnects"] == count


class OldBroker:
    """A relay to a broker; the relay refuses MQTT 5 as a broker of MQTT 3.1.1 does.

    The relay answers with return code 1 (MQTT 3.1.1, section 3.2.2.3), and closes the connection.
    """

    def __init__(self, broker: int) -> None:
        """Relay to the port `broker`."""
        self._broker = broker
        #: Number of refused connections by the bridge's name.
        self.refused: Counter[str] = Counter()
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.start_server(self._serve, "127.0.0.1", 0)
        started = asyncio.run_coroutine_threadsafe(server, self._loop).result(PATIENCE)
        self.port = started.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connect = await reader.read(1_000)
        at = connect.index(b"MQTT") + 4
        if connect[at] != 4:
            name = connect.rpartition(b".")[2].decode()
            self.refused[name] += 1
            writer.write(b"\x20\x02\x00\x01")
            writer.close()
            return
        source, target = await asyncio.open_connection("127.0.0.1", self._broker)
        target.write(connect)
        self._writers += [writer, target]
        await asyncio.gather(self._copy(reader, target), self._copy(source, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    def disconnect(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            self._loop.call_soon_threadsafe(writer.close)
        self._writers.clear()

    def stop(self) -> None:
        self.disconnect()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)


class Amqtt:
    """amqtt's broker in a process of its own."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bridge.amqtt_server", str(port)],
            preexec_fn=end_with_parent,
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
