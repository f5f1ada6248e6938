"""Tests of WebSocket frames and upgrades, however the input is cut into chunks.

The broker's results must equal the results of the packages `websockets` and `wsproto`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import h11
import pytest
import wsproto.connection
import wsproto.events
import wsproto.utilities
from hypothesis import example, given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri
from wsproto import ConnectionType
from wsproto.extensions import PerMessageDeflate

from protocols.peer import Peer
from protocols.websocket import OriginPolicy, WebSocketLayer, WebSocketTally
from protocols.websocket.frames import head, unmask, unmasked
from tests.websocket_client import frame
from trellis.settings.values import split_origins

KEY: Final = b"dGhlIHNhbXBsZSBub25jZQ=="
REQUEST: Final = (
    (
        b"GET /ws HTTP/1.1\r\nHost: localhost:15675\r\nUpgrade: websocket\r\nConnection: "
        b"Upgrade\r\nSec-WebSocket-Key: "
    )
    + KEY
    + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
)
#: The header of the response that RFC 6455 section 1.3 requires for KEY.
ACCEPT: Final = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"


def new(origins: str = "", peer: Peer | None = None) -> WebSocketLayer:
    return WebSocketLayer(
        OriginPolicy("/ws", split_origins(origins)), peer or Peer(), WebSocketTally()
    )


def opened() -> WebSocketLayer:
    layer = new()
    assert layer.receive(REQUEST + b"\r\n") == b""
    assert layer.open
    layer.send([])
    return layer


class Heard(NamedTuple):
    """The data that a server received, its last pong (or None), and its close code (or None)."""

    data: bytes
    pong: bytes | None
    close: int | None


def ours(chunks: list[bytes]) -> Heard:
    layer = opened()
    data = b"".join(layer.receive(chunk) for chunk in chunks)
    return Heard(data, *control_frames(b"".join(layer.send([]))))


def control_frames(data: bytes) -> tuple[bytes | None, int | None]:
    """Return the last pong and the close code of a server, as `websockets` reads them."""
    client = ClientProtocol(parse_uri("ws://localhost/ws"), state=State.OPEN)
    client.receive_data(data)
    pong: bytes | None = None
    code: int | None = None
    for event in client.events_received():
        assert isinstance(event, Frame)
        if event.opcode is Opcode.PONG:
            pong = bytes(event.data)
        elif event.opcode is Opcode.CLOSE:
            code = int.from_bytes(event.data[:2], "big") if event.data else 1005
    return pong, code


def theirs_websockets(chunks: list[bytes]) -> Heard:
    server = ServerProtocol(state=State.OPEN, max_size=None)
    for chunk in chunks:
        server.receive_data(chunk)
    data = b"".join(
        bytes(event.data)
        for event in server.events_received()
        if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT)
    )
    return Heard(data, *control_frames(b"".join(server.data_to_send())))


def theirs_wsproto(chunks: list[bytes]) -> Heard:
    server = wsproto.connection.Connection(ConnectionType.SERVER)
    data, pong, code = b"", None, None
    for chunk in chunks:
        if code is not None:
            break
        server.receive_data(chunk)
        try:
            for event in server.events():
                if isinstance(event, wsproto.events.BytesMessage):
                    data += bytes(event.data)
                elif isinstance(event, wsproto.events.Ping):
                    pong = bytes(event.payload)
                elif isinstance(event, wsproto.events.CloseConnection):
                    code = event.code
        except wsproto.utilities.RemoteProtocolError as error:
            hint: Any = error.event_hint
            code = hint.code
    return Heard(data, pong, code)


# -- frames

PAYLOAD: Final = st.binary(max_size=20) | st.sampled_from(
    [bytes(125), bytes(126), b"x" * 65_535, b"y" * 65_536]
)
CONTROL: Final = st.binary(max_size=125)
CODES: Final = st.sampled_from(
    [0, 999, 1000, 1001, 1003, 1004, 1005, 1006, 1007, 1011, 1014, 1015, 3000, 4999, 5000, 65_535]
)
KEYS: Final = st.binary(min_size=4, max_size=4)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Draw a client's data: messages in one or several frames, pings, pongs, perhaps a close."""
    data = b""
    for _ in range(draw(st.integers(0, 4))):
        parts = draw(st.lists(PAYLOAD, min_size=1, max_size=3))
        for number, part in enumerate(parts):
            if draw(st.booleans()):
                data += frame(draw(st.sampled_from([9, 10])), draw(CONTROL), key=draw(KEYS))
            data += frame(0 if number else 2, part, fin=number == len(parts) - 1, key=draw(KEYS))
    if draw(st.booleans()):
        code = draw(st.none() | CODES)
        data += frame(
            8,
            b""
            if code is None
            else code.to_bytes(2, "big") + draw(st.sampled_from([b"", b"bye", b"\xff"])),
        )
    return data


FAULTS: Final = {
    "no mask": frame(2, b"x", masked=False),
    "compressed": frame(2, b"x", rsv=4),
    "second reserved bit": frame(2, b"x", rsv=2),
    "third reserved bit": frame(9, b"", rsv=1),
    "unknown opcode": frame(3, b"x"),
    "unknown control frame": frame(11, b""),
    "last unknown opcode": frame(15, b""),
    "nothing to continue": frame(0, b"x"),
    "ping in parts": frame(9, b"x", fin=False),
    "close in parts": frame(8, b"", fin=False),
    "ping too long": frame(9, bytes(126)),
    "close of one byte": frame(8, b"x"),
    "length of two bytes for one": frame(2, b"x", wide=2),
    "length of eight bytes for one": frame(2, b"x", wide=8),
    "length beyond 63 bits": frame(2, b"", length=1 << 63),
}


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut data into chunks of these sizes, in turn, again and again."""
    chunks: list[bytes] = []
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            return chunks
        chunks.append(data[at : at + size])
        at += size
    return chunks


SIZES: Final = st.lists(st.integers(1, 10) | st.integers(1_000, 100_000), min_size=1, max_size=5)


@given(conversations(), SIZES)
@settings(max_examples=100, deadline=None)
def test_frames_are_read_as_both_libraries_read_them(data: bytes, sizes: list[int]) -> None:
    chunks = cut(data, [max(size, len(data) // 500) for size in sizes])
    heard, theirs = ours(chunks), theirs_websockets(chunks)
    assert heard.data == theirs.data
    assert heard.close == theirs.close
    other = theirs_wsproto(chunks)
    assert heard.data == other.data
    assert (heard.close is None) == (other.close is None)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("before", [b"", frame(2, b"good"), frame(9, b"ping") + frame(2, b"good")])
@given(sizes=SIZES)
@settings(max_examples=5, deadline=None)
def test_a_fault_closes_with_the_same_code(fault: str, before: bytes, sizes: list[int]) -> None:
    chunks = cut(before + FAULTS[fault] + frame(2, b"never heard"), sizes)
    heard = ours(chunks)
    assert heard.data == (b"good" if before else b"")
    assert heard.close == 1002
    assert theirs_wsproto(chunks)[::2] == heard[::2]
    # `websockets` does not check that a length is encoded as shortly as possible.
    if not fault.startswith("length"):
        assert theirs_websockets(chunks)[::2] == heard[::2]


def test_a_message_within_a_message_is_an_error() -> None:
    chunks = [frame(2, b"a", fin=False) + frame(2, b"b")]
    assert (
        ours(chunks)
        == theirs_websockets(chunks)
        == theirs_wsproto(chunks)
        == Heard(b"a", None, 1002)
    )


def test_text_is_refused() -> None:
    assert ours([frame(2, b"a") + frame(1, b"text")]) == Heard(b"a", None, 1003)


@given(st.binary(max_size=200), SIZES)
@settings(max_examples=200, deadline=None)
@example(b"\x82\xff" + b"\xff" * 8, [1])
def test_any_bytes_end_well_and_alike_however_they_are_cut(data: bytes, sizes: list[int]) -> None:
    heard = ours(cut(data, sizes))
    assert heard.data == ours([data]).data
    assert heard.close == ours([data]).close


def test_the_last_of_many_pings_is_answered_once_a_turn() -> None:
    layer = opened()
    layer.receive(b"".join(frame(9, b"%d" % number) for number in range(10_000)))
    assert layer.send([]) == [b"\x8a\x049999"]
    assert not layer.speaks


def test_slow_payload_takes_no_memory() -> None:
    layer = opened()
    data = frame(2, bytes(100_000))
    assert (
        sum(len(layer.receive(data[at : at + 1_000])) for at in range(0, len(data), 1_000))
        == 100_000
    )
    assert layer._rest == b""


@given(st.lists(st.binary(max_size=40) | st.just(bytes(70_000)), max_size=4), st.integers(0, 2))
@settings(max_examples=50, deadline=None)
def test_output_of_a_turn_is_one_frame_for_both_libraries(parts: list[bytes], pings: int) -> None:
    layer = opened()
    layer.receive(frame(9, b"p") * pings)
    data = b"".join(layer.send(parts))
    websockets = ClientProtocol(parse_uri("ws://localhost/ws"), state=State.OPEN, max_size=None)
    websockets.receive_data(data)
    frames = [
        event
        for event in websockets.events_received()
        if isinstance(event, Frame) and event.opcode is Opcode.BINARY
    ]
    assert [bytes(event.data) for event in frames] == ([b"".join(parts)] if parts else [])
    client = wsproto.connection.Connection(ConnectionType.CLIENT)
    client.receive_data(data)
    assert b"".join(
        bytes(event.data)
        for event in client.events()
        if isinstance(event, wsproto.events.BytesMessage)
    ) == b"".join(parts)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("client", 1000),
        ("taken_over", 1000),
        ("shutdown", 1001),
        ("protocol_error", 1002),
        ("login_refused", 1008),
        ("too_large", 1009),
    ],
)
def test_the_end_of_a_connection_is_a_close_frame(reason: str, code: int) -> None:
    layer = opened()
    layer.close(reason)
    assert control_frames(b"".join(layer.send([b"last"])))[1] == code
    layer.close("again")
    assert layer.send([b"more"]) == []


@given(st.binary(max_size=100), KEYS, st.integers(0, 3), st.integers(0, 10), st.integers(0, 10))
def test_masks_come_off_by_both_ways(
    data: bytes, key: bytes, phase: int, before: int, after: int
) -> None:
    expected = bytes(byte ^ key[(at + phase) & 3] for at, byte in enumerate(data))
    out = BytesWriter()
    unmask(out, bytes(before) + data + bytes(after), before, before + len(data), key, phase)
    assert out.getvalue() == unmasked(data, key, phase) == expected


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 1 << 40])
def test_frame_headers_have_the_shortest_form_of_a_length(size: int) -> None:
    data = head(2, size)
    assert len(data) == (2 if size < 126 else 4 if size < 65_536 else 10)
    if size < 1 << 20:
        assert data + bytes(size) == Frame(Opcode.BINARY, bytes(size)).serialize(mask=False)


# -- the upgrade


def answer(
    request: bytes, origins: str = "", peer: Peer | None = None
) -> tuple[WebSocketLayer, bytes]:
    layer = new(origins, peer)
    layer.receive(request)
    return layer, b"".join(layer.send([]))


def test_the_answer_is_that_of_the_specification() -> None:
    layer, data = answer(REQUEST + b"\r\n")
    assert layer.open
    assert data.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert ACCEPT in data
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in data
    assert b"Extensions" not in data


def request_of_websockets() -> Iterator[Callable[[bytes], None] | bytes]:
    uri = parse_uri("ws://localhost:15675/ws")
    client = ClientProtocol(uri, subprotocols=["mqtt"])  # type: ignore[list-item]
    client.send_request(client.connect())
    yield b"".join(client.data_to_send())

    def read(data: bytes) -> None:
        client.receive_data(data)
        client.events_received()
        assert client.handshake_exc is None
        assert (client.state, client.subprotocol, client.extensions) == (State.OPEN, "mqtt", [])

    yield read


def request_of_wsproto() -> Iterator[Callable[[bytes], None] | bytes]:
    client = wsproto.WSConnection(ConnectionType.CLIENT)
    yield client.send(
        wsproto.events.Request(
            "localhost:15675", "/ws", subprotocols=["x", "mqtt"], extensions=[PerMessageDeflate()]
        )
    )

    def read(data: bytes) -> None:
        client.receive_data(data)
        (event,) = client.events()
        assert isinstance(event, wsproto.events.AcceptConnection)
        assert (event.subprotocol, event.extensions) == ("mqtt", [])

    yield read


@pytest.mark.parametrize("make", [request_of_websockets, request_of_wsproto])
def test_the_requests_of_both_libraries_are_granted_and_compression_is_not(
    make: Callable[[], Iterator[Any]],
) -> None:
    request, read = make()
    layer, data = answer(request)
    assert layer.open
    read(data)


def test_frames_behind_the_request_are_handled() -> None:
    layer = new()
    assert layer.receive(REQUEST + b"\r\n" + frame(2, b"early")) == b"early"


@given(st.integers(1, len(REQUEST) + 1))
@settings(max_examples=40, deadline=None)
def test_a_request_may_be_cut_anywhere(at: int) -> None:
    layer, data = new(), REQUEST + b"\r\n" + frame(2, b"x")
    assert layer.receive(data[:at]) + layer.receive(data[at:]) == b"x"


def without(name: bytes) -> bytes:
    return (
        b"".join(line for line in REQUEST.splitlines(keepends=True) if not line.startswith(name))
        + b"\r\n"
    )


REFUSED: Final = {
    "garbage": (b"\x00\x01\x02\r\n\r\n", 400, "request"),
    "plain MQTT": (b"\x10\x0c\x00\x04MQTT\r\n\r\n", 400, "request"),
    "another method": (REQUEST.replace(b"GET", b"PUT") + b"\r\n", 405, "request"),
    "another path": (REQUEST.replace(b"/ws", b"/other") + b"\r\n", 404, "path"),
    "HTTP/1.0": (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n", 400, "request"),
    "no host": (without(b"Host"), 400, "request"),
    "no upgrade": (without(b"Upgrade"), 426, "request"),
    "no connection": (without(b"Connection"), 426, "request"),
    "no version": (without(b"Sec-WebSocket-Version"), 426, "request"),
    "version 8": (REQUEST.replace(b"13", b"8") + b"\r\n", 426, "request"),
    "no key": (without(b"Sec-WebSocket-Key"), 400, "request"),
    "short key": (REQUEST.replace(KEY, b"AAAA") + b"\r\n", 400, "request"),
    "key that is no base64": (REQUEST.replace(KEY, b"!" * 24) + b"\r\n", 400, "request"),
    "two keys": (REQUEST + b"Sec-WebSocket-Key: " + KEY + b"\r\n\r\n", 400, "request"),
    "no subprotocol": (without(b"Sec-WebSocket-Protocol"), 400, "subprotocol"),
    "another subprotocol": (REQUEST.replace(b": mqtt", b": chat") + b"\r\n", 400, "subprotocol"),
    "header without end": (REQUEST + b"X: " + b"x" * 20_000, 431, "too_large"),
    "many headers": (REQUEST + b"X: xxxxxxxx\r\n" * 2_000, 431, "too_large"),
}


@pytest.mark.parametrize(
    ("configured", "path", "served"),
    [
        ("/ws", b"/ws", True),
        ("/ws", b"/mqtt", True),
        ("/ws", b"/mqtt?a=b", True),
        ("/ws", b"/mqtt/", False),
        ("/bus", b"/bus", True),
        ("/bus", b"/mqtt", False),
        ("/bus", b"/ws", False),
    ],
)
def test_the_paths_of_the_websocket(configured: str, path: bytes, served: bool) -> None:
    layer = WebSocketLayer(OriginPolicy(configured, []), Peer(), WebSocketTally())
    layer.receive(REQUEST.replace(b"/ws", path) + b"\r\n")
    assert layer.open is served


@pytest.mark.parametrize("name", REFUSED)
def test_request_for_no_websocket_gets_the_reason_and_is_counted(name: str) -> None:
    request, status, reason = REFUSED[name]
    layer, data = answer(request)
    assert (layer.open, layer.over) == (False, "websocket_refused")
    assert layer._tally.refused == dict.fromkeys(layer._tally.refused, 0) | {reason: 1}
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.receive_data(data)
    response = http.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == status
    body = http.next_event()
    assert isinstance(body, h11.Data)
    assert bytes(body.data).decode().isprintable() or body.data.endswith(b"\n")
    assert layer.receive(b"more") == b""


@pytest.mark.parametrize(
    "name",
    sorted(
        {name for name, (_, _, reason) in REFUSED.items() if reason == "request"}
        - {"another method", "no host"}
    ),
)
def test_websockets_refuses_the_same_requests(name: str) -> None:
    server = ServerProtocol()
    server.receive_data(REFUSED[name][0])
    requests: list[Any] = server.events_received()
    assert server.handshake_exc is not None or server.accept(requests[0]).status_code >= 400


# -- Origins

LOCAL, AFAR = True, False
SAME, FOREIGN = False, True


@pytest.mark.parametrize(
    ("host", "origin", "allowed", "expected"),
    [
        ("localhost:15675", None, "", (LOCAL, SAME)),
        ("127.0.0.1:15675", None, "", (LOCAL, SAME)),
        ("[::1]:15675", None, "", (LOCAL, SAME)),
        ("broker.example:15675", None, "", (AFAR, SAME)),
        ("localhost:15675", "http://localhost:8000", "", (LOCAL, SAME)),
        ("LOCALHOST:15675", "http://Localhost", "", (LOCAL, SAME)),
        ("127.0.0.1:15675", "http://localhost:8000", "", (LOCAL, SAME)),
        ("[::1]:15675", "http://[::1]:8000", "", (LOCAL, SAME)),
        ("broker.example:15675", "https://broker.example", "", (AFAR, SAME)),
        ("localhost:15675", "https://evil.example", "", None),
        ("localhost:15675", "https://localhost.evil.example", "", None),
        ("broker.example", "https://evil.example", "https://app.example", None),
        ("broker.example", "https://app.example.evil", "https://app.example", None),
        ("broker.example", "https://app.example:8443", "https://app.example", None),
        ("localhost:15675", "null", "", None),
        ("", "null", "", None),
        ("localhost:15675", "", "", None),
        ("broker.example", "https://App.example", "https://app.example", (AFAR, FOREIGN)),
        ("localhost:15675", "https://app.example", "https://app.example", (AFAR, FOREIGN)),
        ("localhost:15675", "null", "null", (AFAR, FOREIGN)),
        ("localhost:15675", "https://any.example", "*", (AFAR, FOREIGN)),
        # DNS rebinding: a page whose host name resolves to this machine may connect, but does not
        # count as local.
        ("evil.example:15675", "http://evil.example:15675", "", (AFAR, SAME)),
    ],
)
def test_a_page_of_another_host_is_refused_or_has_nothing_of_this_machine(
    host: str, origin: str | None, allowed: str, expected: tuple[bool, bool] | None
) -> None:
    peer = Peer()
    request = REQUEST.replace(b"localhost:15675", host.encode())
    if origin is not None:
        request += f"Origin: {origin}\r\n".encode()
    layer, data = answer(request + b"\r\n", allowed, peer)
    if expected is None:
        assert data.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert layer._tally.refused["origin"] == 1
    else:
        assert layer.open
        assert (peer.local, peer.cross_site) == expected


@pytest.mark.parametrize(
    "header", [b"X-Forwarded-For: 10.0.0.9\r\n", b"Forwarded: for=10.0.0.9\r\n"]
)
def test_client_behind_a_proxy_is_not_on_this_machine(header: bytes) -> None:
    peer = Peer()
    layer, _ = answer(REQUEST + header + b"\r\n", "", peer)
    assert layer.open
    assert not peer.local
