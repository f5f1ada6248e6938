"""Tests of waiting input over TLS and WebSocket: it waits for a later turn, or for the login."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trellis
from protocols.budget import BUDGET
from protocols.login_input import LOGIN_INPUT_MAX
from protocols.peer import Peer
from protocols.websocket.frames import BINARY, CLOSE
from tests.authority import Authority
from tests.clients import connect_packet, mqtt_publish
from tests.tls_records import DATA, TlsClient
from tests.top.conftest import Start
from tests.top.running import KNOWN, Mqtt0, Running, Socket
from tests.top.secured import secure
from tests.top.test_link import SLOW
from tests.top.test_tls import Tapped
from tests.websocket_client import MQTT, frame, upgrade
from trellis.server.link import Link
from trellis.server.tls import PIECE_BYTES, RECORDS_MAX, TlsLayer, TlsTally

WS: Final = {"enabled": True, "port": 0, "host": "127.0.0.1"}
#: The largest chunk that uvloop passes to a link.
CHUNK: Final = 256_000
DISCONNECT: Final = b"\xe0\x00"
CONTEXT: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


class Secured:
    """A client in memory, with a completed TLS handshake over a socket, and the broker's link."""

    def __init__(self, client: TlsClient, sock: Socket, link: Link) -> None:
        self.client = client
        self.socket = sock
        self.link = link

    async def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes of data that the broker sends."""
        data = b""
        while len(data) < count:
            received = await self.socket.read()
            assert received, f"closed after {data!r}"
            data += self.client.receive(received)
        return data


async def secured(running: Running, authority: Authority, secrets: Path) -> Secured:
    known = set(running.links)
    client = TlsClient(authority.client(), secrets)
    sock = await running.socket("mqtts")
    await sock.send(client.handshake())
    while not client.complete:
        await sock.send(client.handshake(await sock.read()))
    (link,) = set(running.links) - known
    assert isinstance(layer_of(link), TlsLayer)
    await running.until(lambda: layer_of(link).open and layer_of(link)._out.pending == 0)
    return Secured(client, sock, link)


def layer_of(link: Link) -> TlsLayer:
    layer: TlsLayer = link._layers[0]  # type: ignore[attr-defined]
    return layer


# -- many records in one chunk


async def answered(client: Secured, updates: list[bytes]) -> list[int]:
    """Pass KeyUpdate records to the link in one chunk; return the sizes of the broker's writes.

    The broker answers each record with one of the same size. OpenSSL sends the answer to the last
    record later, with its next data, so wait for the answers to all other records.
    """
    transport = client.link._transport
    assert transport is not None
    written: list[bytes] = []
    client.link._transport = Tapped(transport, written)  # type: ignore[assignment]
    # The data is passed as one chunk, because the kernel might divide data from a socket.
    client.link.data_received(b"".join(updates))
    while sum(map(len, written)) < sum(map(len, updates[1:])):
        assert await client.socket.read()
    client.link._transport = transport
    return [len(part) for part in written]


@pytest.mark.parametrize(
    "logged_in",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(trellis.compiled(), reason="compiled modules keep constants"),
        ),
    ],
)
async def test_a_turn_decodes_few_records_of_a_chunk(
    start: Start,
    authority: Authority,
    tmp_path: Path,
    logged_in: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn of the event loop decodes at most 2 * RECORDS_MAX records of a client's chunk.

    Decoding a KeyUpdate record takes 15 us, so that a whole chunk of them would block the event
    loop for 140 ms.
    """
    running = await start(**secure(authority))
    client = await secured(running, authority, tmp_path / "secrets")
    connect = connect_packet("c", user="known/known")
    if logged_in:
        await client.socket.send(client.client.data(connect))
        assert await client.exactly(4) == b"\x20\x02\x00\x00"
        # Each piece uses up a turn's time for input.
        monkeypatch.setattr("trellis.server.turn.INPUT_SECONDS", -1.0)
    sent = 1 if logged_in else 0
    updates = [client.client.key_update(sent if at == 0 else 0) for at in range(CHUNK // 27)]
    sizes = await answered(client, updates)
    # A chunk of this size skips the login queue once, so the first turn handles two pieces.
    assert max(sizes) <= 2 * RECORDS_MAX * len(updates[0])
    await client.socket.send(client.client.record(b"\xc0\x00" if logged_in else connect, DATA))
    (connection,) = running.node.mqtt.connections
    await running.until(lambda: connection.bytes_in == len(connect) + (2 if logged_in else 0))
    assert connection.admitted or not logged_in
    client.socket.close()


async def test_input_that_waits_before_the_login_is_charged_once(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    running = await start(**secure(authority), rates={"connection_bytes": 2 * CHUNK})
    client = await secured(running, authority, tmp_path / "secrets")
    updates = [client.client.key_update(0) for _ in range(CHUNK // 27)]
    await answered(client, updates)
    await client.socket.send(client.client.record(connect_packet("c", user="known/known"), DATA))
    (connection,) = running.node.mqtt.connections
    await running.until(lambda: connection.admitted)
    assert running.node.rates.throttled == {"connection_bytes": 0}
    assert running.node.rates.disconnected == {"connection_bytes": 0}
    client.socket.close()


@given(
    st.lists(st.integers(0, 300) | st.integers(0, 16_640), max_size=10),
    st.integers(1, 20),
    st.lists(st.integers(1, 60_000) | st.integers(1, CHUNK), max_size=8),
)
def test_pieces_have_few_records_and_follow_each_other(
    some: list[int], repeated: int, cuts: list[int]
) -> None:
    lengths = some * repeated
    layer = TlsLayer(CONTEXT, Peer("", 0, True), TlsTally(), "")
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in lengths)
    begins, at = set(), 0
    for size in lengths:
        begins.add(at)
        at += 5 + size
    done = 0
    for cut in [*cuts, len(stream)]:
        data = stream[done : done + cut]
        start = 0
        while start < len(data):
            end = layer.piece_end(data, start)
            assert start < end <= len(data)
            within = sum(done + start <= begin < done + end for begin in begins)
            # A record whose header began in an earlier chunk counts in the piece of its last bytes.
            assert within <= RECORDS_MAX
            full = within >= RECORDS_MAX - 1 or end - start >= PIECE_BYTES
            assert end == len(data) or full and done + end in begins
            # A piece ends with the record that reaches the limit.
            assert not any(start + PIECE_BYTES <= begin - done < end for begin in begins)
            start = end
        done += len(data)


def test_a_large_output_is_encrypted_in_pieces(authority: Authority, tmp_path: Path) -> None:
    """The buffers of OpenSSL keep the size of the largest output, so this size must be bounded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("localhost"))
    layer = TlsLayer(context, Peer("", 0, True), TlsTally(), "")
    client = TlsClient(authority.client(), tmp_path / "secrets")
    sent = client.handshake()
    while not client.complete:
        layer.receive(sent)
        sent = client.handshake(b"".join(layer.send([])))
    layer.receive(sent)
    body = bytes(range(256)) * 2_000
    for parts in ([body], [body[:100], body[100:]]):
        pieces = layer.send(parts)
        assert len(pieces) == 1 + len(body) // PIECE_BYTES
        assert max(map(len, pieces)) < PIECE_BYTES + 4 * 256
        assert client.receive(b"".join(pieces)) == body
    (small,) = layer.send([body[:PIECE_BYTES]])
    assert client.receive(small) == body[:PIECE_BYTES]


# -- the end of the input behind input that waits


async def watched(start: Start, **listener: object) -> tuple[Running, Mqtt0]:
    """Return a broker with a slow user, and a client that reads the topics `t` and `gone`."""
    running = await start(users=[KNOWN, SLOW], **listener)
    watcher = await running.mqtt("watcher", user="known/known")
    await watcher.subscribe("t")
    await watcher.subscribe("gone")
    return running, watcher


#: A client that says all it has to say without waiting for an answer. Its password takes a while to
#: verify. It leaves in an orderly way, so its will must not be published.
HASTY: Final = (
    connect_packet("hasty", user="slow/slow", will=("gone", b"will"))
    + mqtt_publish("t", b"last words")
    + DISCONNECT
)


async def heard(running: Running, watcher: Mqtt0) -> None:
    """Check that `watcher` gets the last message of the disconnected client, and not its will."""
    assert await watcher.packet() == (0x30, b"\x00\x01tlast words")
    await running.until(lambda: running.node.mqtt.closed == {"client": 1})
    await watcher.ping()
    await watcher.leave()


async def test_input_before_close_notify_waits_for_the_login(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    running, watcher = await watched(start, **secure(authority))
    client = await secured(running, authority, tmp_path / "secrets")
    client.link.data_received(client.client.data(HASTY) + client.client.close_notify())
    await heard(running, watcher)
    client.socket.close()


async def test_undecoded_input_before_the_login_is_limited(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    running = await start(**secure(authority))
    client = await secured(running, authority, tmp_path / "secrets")
    message = mqtt_publish("t", bytes(100))
    records = [client.client.data(connect_packet("hasty", user="known/known"))]
    records += [client.client.data(message) for _ in range(LOGIN_INPUT_MAX // len(message) + 200)]
    client.link.data_received(b"".join(records))
    await running.until(lambda: running.node.mqtt.closed == {"too_much_before_login": 1})
    await client.socket.read_to_end()
    assert client.link._undecoded == b""  # type: ignore[attr-defined]


async def test_input_before_a_close_frame_waits_for_the_login(start: Start) -> None:
    running, watcher = await watched(start, ws=WS)
    client = await running.socket("ws")
    await running.until(lambda: len(running.links) == 2)
    running.links[1].data_received(
        upgrade("/ws", MQTT) + frame(BINARY, HASTY) + frame(CLOSE, b"\x03\xe8")
    )
    await heard(running, watcher)
    answer = await client.read_to_end()
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert answer.endswith(b"\x88\x02\x03\xe8")


async def test_input_before_close_notify_waits_for_its_turn(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    running, watcher = await watched(start, **secure(authority))
    client = await secured(running, authority, tmp_path / "secrets")
    connect = connect_packet("busy", user="known/known", will=("gone", b"will"))
    await client.socket.send(client.client.data(connect))
    assert await client.exactly(4) == b"\x20\x02\x00\x00"
    count = 2 * BUDGET
    many = mqtt_publish("t", b"") * count
    client.link.data_received(client.client.data(many + DISCONNECT) + client.client.close_notify())
    assert await watcher.socket.exactly(len(many)) == many
    await running.until(lambda: running.node.mqtt.closed == {"client": 1})
    await watcher.ping()
    client.socket.close()
