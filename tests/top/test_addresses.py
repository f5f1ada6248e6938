"""Tests of Unix sockets and PROXY headers: which address a client has."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.proxy import HEADER_MAX, UNKNOWN, BadHeader, read_header
from tests.authority import Authority
from tests.clients import connect_packet
from tests.top.conftest import Start
from tests.top.running import KNOWN, Amqp0, Leaks, Mqtt0, Running, Stream
from trellis.server.listener import ListenError, bind
from trellis.server.listener_context import peer_of
from trellis.settings import Mqtt

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"


async def over_file(path: Path) -> Stream:
    return Stream(*await asyncio.open_unix_connection(path))


# -- Unix sockets


async def test_clients_of_both_protocols_use_unix_sockets(start: Start, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.sock" for name in ("amqp", "mqtt")}
    sockets = {
        name: {"port": 0, "host": "127.0.0.1", "socket": str(path)} for name, path in paths.items()
    }
    running = await start(users=[KNOWN | {"loopback_only": True}], **sockets)
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths.values()] == [0o660, 0o660]
    mqtt = Mqtt0(await over_file(paths["mqtt"]))
    assert await mqtt.connect("nameless") == 0
    amqp = Amqp0(await over_file(paths["amqp"]))
    await amqp.log_in()
    assert {
        str(connection.peer) for front in running.node.fronts for connection in front.connections
    } == {"unix"}
    await mqtt.leave()
    await amqp.leave()
    await running.stop()
    assert not any(path.exists() for path in paths.values())


def file_of(path: Path, mode: str = "0660") -> Mqtt:
    return Mqtt(port=0, host="127.0.0.1", socket=str(path), socket_mode=mode)


def test_a_socket_that_a_dead_broker_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    bound = bind("mqtt", file_of(path, "0600"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    bound.close()
    assert not path.exists()


def test_socket_in_use_and_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    bound = bind("mqtt", file_of(path))
    with pytest.raises(ListenError) as raised:
        bind("mqtt", file_of(path))
    assert str(raised.value) == (
        f"mqtt: {path} is in use; stop the program that has it, or set mqtt.socket "
        "(TRELLIS_MQTT_SOCKET, --mqtt-socket)"
    )
    bound.close()
    path.write_text("precious")
    with pytest.raises(ListenError, match="exists and is not a socket; remove it, or set mqtt"):
        bind("mqtt", file_of(path))
    assert path.read_text() == "precious"


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ListenError) as raised:
        bind("mqtt", file_of(tmp_path / "gone" / "mqtt.sock"))
    assert str(raised.value).startswith(
        f"mqtt: cannot listen on {tmp_path / 'gone' / 'mqtt.sock'}: No such file or directory; "
        "make its "
    )


def test_a_port_that_cannot_be_had_gives_the_socket_back(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ListenError, match="in use"),
    ):
        bind("mqtt", Mqtt(port=taken.getsockname()[1], host="127.0.0.1", socket=str(path)))
    assert not path.exists()


def test_anothers_socket_at_the_same_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    bound = bind("mqtt", file_of(path))
    os.rename(path, tmp_path / "aside")
    other = bind("mqtt", file_of(path))
    bound.close()
    assert path.exists()
    other.close()


# -- PROXY headers


def binary(
    source: str,
    port: int,
    command: int = 0x21,
    family: int | None = None,
    more: bytes = b"",
    length: int | None = None,
) -> bytes:
    """Return a PROXY header of version 2 for a client at the address `source` and `port`.

    `command` and `family` are the bytes with these fields; `more` follows the addresses. `length`
    and `family` are correct unless a test gives other values.
    """
    version = socket.AF_INET6 if ":" in source else socket.AF_INET
    other = "::1" if ":" in source else "127.0.0.1"
    data = (
        socket.inet_pton(version, source)
        + socket.inet_pton(version, other)
        + port.to_bytes(2, "big")
        + b"\x00\x01"
        + more
    )
    kind = (0x21 if ":" in source else 0x11) if family is None else family
    return (
        SIGNATURE
        + bytes([command, kind])
        + (len(data) if length is None else length).to_bytes(2, "big")
        + data
    )


GOOD: Final = {
    "v1 IPv4": (b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n", ("192.0.2.1", 56324)),
    "v1 IPv6": (b"PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n", ("2001:db8::1", 1)),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", UNKNOWN),
    "v1 unknown with more": (b"PROXY UNKNOWN ffff:f...f:ffff ffff::1 65535 65535\r\n", UNKNOWN),
    "v2 IPv4": (binary("192.0.2.1", 56324), ("192.0.2.1", 56324)),
    "v2 IPv6": (binary("2001:db8::1", 7), ("2001:db8::1", 7)),
    "v2 with more": (binary("192.0.2.1", 5, more=b"\x04\x00\x02xx" * 50), ("192.0.2.1", 5)),
    "v2 local": (binary("192.0.2.1", 5, command=0x20), None),
    "v2 local without addresses": (SIGNATURE + b"\x20\x00\x00\x00", None),
    "v2 of a Unix socket": (SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216), UNKNOWN),
}
BAD: Final = {
    "nothing of the kind": b"GET / HTTP/1.1\r\n",
    "MQTT": connect_packet("c"),
    "v1 of another family": b"PROXY TCP5 192.0.2.1 198.51.100.1 1 1\r\n",
    "v1 of the wrong family": b"PROXY TCP6 192.0.2.1 198.51.100.1 1 1\r\n",
    "v1 without ports": b"PROXY TCP4 192.0.2.1 198.51.100.1\r\n",
    "v1 with a port too high": b"PROXY TCP4 192.0.2.1 198.51.100.1 65536 1\r\n",
    "v1 with a port of letters": b"PROXY TCP4 192.0.2.1 198.51.100.1 x 1\r\n",
    "v1 with a leading zero": b"PROXY TCP4 192.0.2.1 198.51.100.1 01 1\r\n",
    "v1 with a name": b"PROXY TCP4 localhost 198.51.100.1 1 1\r\n",
    "v1 with two blanks": b"PROXY TCP4  192.0.2.1 198.51.100.1 1 1\r\n",
    "v1 too long": b"PROXY UNKNOWN " + b"x" * 107,
    "v2 of version 3": binary("192.0.2.1", 5, command=0x31),
    "v2 of another command": binary("192.0.2.1", 5, command=0x22),
    "v2 too short for its addresses": binary("192.0.2.1", 5, length=11),
    "v2 too long": SIGNATURE + b"\x21\x11\xff\xff" + bytes(HEADER_MAX),
}


@pytest.mark.parametrize("name", GOOD)
def test_headers_name_the_client_and_end_where_they_end_however_they_come(name: str) -> None:
    data, address = GOOD[name]
    assert read_header(data + b"\x10rest") == (len(data), address)
    for at in range(len(data)):
        assert read_header(data[:at]) == (0, None)


@pytest.mark.parametrize("name", BAD)
def test_invalid_proxy_header_is_refused(name: str) -> None:
    with pytest.raises(BadHeader):
        read_header(BAD[name])


@given(
    st.sampled_from(
        [
            b"",
            b"PROXY ",
            b"PROXY TCP4 ",
            SIGNATURE,
            SIGNATURE + b"\x21\x11",
            SIGNATURE + b"\x21\x21\x00\x24",
        ]
    ),
    st.binary(max_size=300),
)
@settings(deadline=None)
def test_any_bytes_are_a_header_a_part_of_one_or_none(start: bytes, more: bytes) -> None:
    try:
        size, _ = read_header(start + more)
        assert 0 <= size <= len(start + more)
    except BadHeader:
        pass


def behind(**more: Any) -> dict[str, Any]:
    """Return settings with trusted proxies on this machine."""
    listener = {"port": 0, "host": "127.0.0.1", "proxies": "127.0.0.1,10.0.0.0/8"}
    return {"amqp": listener, "mqtt": listener} | more


async def brought(running: Running, header: bytes, listener: str = "mqtt") -> Mqtt0:
    client = await running.socket(listener)
    await client.send(header)
    return Mqtt0(client)


@pytest.mark.parametrize(
    ("name", "peer"), [("v1 IPv4", "192.0.2.1:56324"), ("v2 IPv6", "[2001:db8::1]:7")]
)
async def test_client_has_the_address_of_the_proxy_header_and_is_not_local(
    start: Start, name: str, peer: str
) -> None:
    running = await start(**behind())
    client = await brought(running, GOOD[name][0])
    assert await client.connect("brought", user="known/known") == 0
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["peer"] == peer
    nameless = await brought(running, GOOD[name][0])
    assert await nameless.connect("nameless") == 5
    await client.leave()
    nameless.socket.close()


async def test_the_header_may_come_byte_by_byte_and_with_more_input(start: Start) -> None:
    running = await start(**behind())
    header = GOOD["v2 IPv4"][0]
    client = await running.socket("mqtt")
    for at in range(len(header)):
        await client.send(header[at : at + 1])
        await asyncio.sleep(0)
    await client.send(connect_packet("slow", user="known/known"))
    assert await client.exactly(4) == b"\x20\x02\x00\x00"
    at_once = await running.socket("mqtt")
    await at_once.send(header + connect_packet("fast", user="known/known") + b"\xc0\x00")
    assert await at_once.exactly(6) == b"\x20\x02\x00\x00\xd0\x00"
    client.close()
    at_once.close()


async def test_a_health_check_of_the_proxy_is_the_proxy_itself(start: Start) -> None:
    running = await start(**behind())
    client = await brought(running, GOOD["v2 local"][0])
    assert await client.connect("health") == 0
    await client.leave()


@pytest.mark.parametrize("name", ["v1 unknown", "v2 of a Unix socket"])
async def test_a_client_without_an_address_is_not_local(start: Start, name: str) -> None:
    running = await start(**behind())
    client = await brought(running, GOOD[name][0])
    assert await client.connect("nameless") == 5
    client.socket.close()


@pytest.mark.parametrize(("proxy", "local"), [("127.0.0.1", True), ("10.0.0.5", False)])
async def test_a_loopback_address_in_a_header_is_that_of_the_proxys_machine(
    start: Start, proxy: str, local: bool
) -> None:
    context = (await start(**behind())).node.listener_contexts["mqtt"]
    peer = context.proxied_peer(("127.0.0.1", 5), peer_of((proxy, 4)))
    assert (str(peer), peer.local) == ("127.0.0.1:5", local)


async def test_the_bound_of_an_address_is_that_of_the_client(start: Start) -> None:
    running = await start(**behind(limits={"unauthenticated_per_address": 2}))
    clients = [await brought(running, GOOD["v1 IPv4"][0]) for _ in range(2)]
    await running.until(lambda: len(running.node.mqtt.connections) == 2)
    third = await brought(running, GOOD["v1 IPv4"][0])
    assert await third.socket.read_to_end() == b""
    assert running.node.admission.refused["unauthenticated_per_address"] == 1
    other = await brought(running, GOOD["v1 IPv6"][0])
    assert await other.connect("other", user="known/known") == 0
    for client in (*clients, other):
        client.socket.close()


async def test_proxy_without_a_header_is_disconnected_counted_and_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = await start(**behind(limits={"handshake": 0.5}))
    leaks = await Leaks.watch(running)
    refused = [b"", b"PROXY TCP4 192.0.2", BAD["MQTT"], BAD["v2 too long"]]
    for count, data in enumerate(refused, 1):
        client = await running.socket("mqtt")
        await client.send(data)
        assert await client.read_to_end() == b"", data
        assert running.node.admission.refused["proxy_header"] == count, data
        assert running.node.refusals.counts == {"connection_refused": count}, data
    (line,) = [text for text in caplog.messages if text.startswith("connection_refused")]
    assert line.startswith("connection_refused address=127.0.0.1 note=")
    assert "no valid PROXY header" in line
    await leaks.check()
    assert (await running.scrape()).value(
        "trellis_connections_refused_total", reason="proxy_header"
    ) == len(refused)
    assert running.node.mqtt.opened == 0


async def test_a_proxy_that_only_tests_the_port_is_not_logged(start: Start) -> None:
    running = await start(**behind())
    check = await running.socket("mqtt")
    await running.until(lambda: len(running.node.turn.links) == 1)
    check.close()
    await running.until(lambda: running.node.admission.refused["proxy_header"] == 1)
    assert running.node.refusals.counts == {}


async def test_a_proxy_above_the_limit_of_connections_is_logged(start: Start) -> None:
    running = await start(**behind(limits={"connections": 1}))
    client = await brought(running, GOOD["v1 IPv4"][0])
    assert await client.connect("only", user="known/known") == 0
    other = await running.socket("mqtt")
    assert await other.read_to_end() == b""
    assert running.node.refusals.counts == {"connection_refused": 1}
    await client.leave()


async def test_a_stop_waits_for_no_header(start: Start) -> None:
    running = await start(**behind(shutdown={"grace": 15.0}))
    client = await running.socket("mqtt")
    await running.until(lambda: len(running.node.turn.links) == 1)
    async with asyncio.timeout(10):
        await running.stop()
    assert await client.read_to_end() == b""


async def test_from_elsewhere_a_header_is_nonsense(start: Start) -> None:
    running = await start(mqtt={"port": 0, "host": "127.0.0.1", "proxies": "10.0.0.0/8"})
    liar = await brought(running, GOOD["v1 IPv4"][0])
    assert await liar.socket.read_to_end() == b""
    assert running.node.mqtt.closed == {"protocol_error": 1}
    client = await running.mqtt("direct", user="known/known")
    await client.leave()


async def test_the_header_comes_before_tls(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    listener = {"enabled": True, "port": 0, "host": "127.0.0.1", "proxies": "127.0.0.1"}
    running = await start(mqtts=listener, tls={"certificate": str(authority.sign("localhost"))})

    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", running.port("mqtts"))) as raw:
            raw.sendall(GOOD["v1 IPv4"][0])
            with authority.client().wrap_socket(raw, server_hostname="localhost") as client:
                client.sendall(connect_packet("secure", user="known/known"))
                data = client.recv(4)
                assert [str(connection.peer) for connection in running.node.mqtt.connections] == [
                    "192.0.2.1:56324"
                ]
                return data

    assert await asyncio.to_thread(talk) == b"\x20\x02\x00\x00"
