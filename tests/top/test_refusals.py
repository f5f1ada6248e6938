"""Tests of the log of refusals.

The log has one line for the first of equal refusals, and later one line with the number of
repetitions.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

import pytest

from protocols.amqp.connection.handshake import GREETING
from tests.clients import mqtt_publish, start_ok
from tests.top.conftest import Start
from tests.top.running import KNOWN, Mqtt0, Running
from tests.websocket_client import MQTT, upgrade
from tests.wire.mqtt.client import subscribe
from trellis.server.refusals import FIELD_MAX, LINES_MAX, RefusalLog

Line = tuple[str, dict[str, Any]]


class Log:
    """A log of refusals that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.refusals = RefusalLog(asyncio.get_running_loop(), self._write)

    def _write(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


async def test_equal_refusals_are_one_line_and_a_number() -> None:
    log = Log()
    for _ in range(5):
        log.refusals.add("login_refused", {"user": "ann", "note": "the password is wrong"})
    log.refusals.add("login_refused", {"user": "bob", "note": "the password is wrong"})
    ann, bob = (
        ("login_refused", {"user": user, "note": "the password is wrong"})
        for user in ("ann", "bob")
    )
    assert log.lines == [ann, bob]
    log.refusals.report()
    assert log.lines[2:] == [("login_refused", {**ann[1], "repeated": 4})]
    assert log.refusals.counts == {"login_refused": 6}
    # In the next minute, the first refusal is logged with a line again.
    log.refusals.add("login_refused", {"user": "ann", "note": "the password is wrong"})
    assert log.lines[3:] == [ann]
    log.refusals.report()
    assert len(log.lines) == 4


async def test_lines_and_memory_are_bounded() -> None:
    log = Log()
    for number in range(LINES_MAX + 700):
        log.refusals.add("login_refused", {"user": f"u{number}", "note": "x" * 100_000})
    assert len(log.lines) == LINES_MAX and log.refusals.left_out == 700
    assert all(len(str(fields["note"])) == FIELD_MAX for _, fields in log.lines)
    log.refusals.report()
    assert [(event, fields["count"]) for event, fields in log.lines[LINES_MAX:]] == [
        ("refusals_left_out", 700)
    ]
    log.refusals.add("login_refused", {"user": "u0", "note": "y"})
    assert len(log.lines) == LINES_MAX + 2 and log.refusals.left_out == 700


async def refused(running: Running, caplog: pytest.LogCaptureFixture, event: str) -> str:
    """Return the log line about the single refusal of a kind, once it is written; clear the log."""

    def lines() -> list[str]:
        return [text for text in caplog.messages if text.split()[0] == event]

    await running.until(lambda: lines() != [])
    (line,) = lines()
    caplog.clear()
    return line


async def test_refused_logins(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Each protocol logs a refused login with the address and the reason, not the password."""
    caplog.set_level("INFO")
    running = await start(mqtt={"port": 0, "host": "127.0.0.1", "anonymous": "false"})
    client = await running.socket("amqp")
    await client.send(GREETING + start_ok("known", "se cret"))
    assert await refused(running, caplog, "login_refused") == (
        'login_refused protocol=amqp091 user=known address=127.0.0.1 note="the password is wrong"'
    )
    assert await Mqtt0(await running.socket("mqtt")).connect("c", user="ann/se cret") == 4
    assert await refused(running, caplog, "login_refused") == (
        "login_refused protocol=mqtt user=ann address=127.0.0.1 client_id=c "
        "note=\"no user is named 'ann'\""
    )
    assert await Mqtt0(await running.socket("mqtt")).connect("c") == 5
    assert (await refused(running, caplog, "login_refused")).endswith(
        'client_id=c note="anonymous access is not allowed: give a user and a password"'
    )
    login = base64.b64encode(b"known:se cret").decode()
    status, _ = await running.get("http", "/api/overview", f"Authorization: Basic {login}\r\n")
    assert status == 401
    assert await refused(running, caplog, "login_refused") == (
        'login_refused protocol=http user=known address=127.0.0.1 note="the password is wrong"'
    )
    scrape = await running.scrape()
    assert scrape.value("trellis_refusals_total", event="login_refused") == 4
    assert scrape.value("trellis_refusals_left_out_total") == 0


async def test_refused_requests(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP API logs its refusals, except a GET of an object that does not exist."""
    caplog.set_level("INFO")
    watcher = {**KNOWN, "tags": ["management"]}
    running = await start(users=[watcher])
    login = base64.b64encode(b"known:known").decode()
    headers = f"Authorization: Basic {login}\r\n"
    assert (await running.get("http", "/api/queues/%2F/nope", headers))[0] == 404
    assert (await running.get("http", "/api/users", headers))[0] == 403
    assert await refused(running, caplog, "http_refused") == (
        'http_refused user=known address=127.0.0.1 request="GET /api/users" status=403 '
        "note=\"user 'known' lacks the tag 'administrator', which this request requires\""
    )


ELSEWHERE: Final = "Host: localhost\r\nOrigin: http://evil.example\r\n"


@pytest.mark.parametrize(
    ("request_line", "headers", "request_field", "status", "note"),
    [
        ("PUT /api/users/x", ELSEWHERE, "PUT /api/users/x", 403, "a web page of another site may"),
        ("POST /page/login", ELSEWHERE, "POST /page/login", 403, "a web page of another site may"),
        ("DELETE /api/nope", "Host: localhost\r\n", "DELETE /api/nope", 404, "no path '/api/nope'"),
        (
            "POST /api/whoami",
            "Host: localhost\r\n",
            "POST /api/whoami",
            405,
            "'/api/whoami' does not support the method POST; use one of GET, HEAD",
        ),
        (
            "GET /api/whoami",
            "Host: a\r\nOrigin: b\r\nOrigin: c\r\n",
            "GET /api/whoami",
            400,
            "origin",
        ),
        ("GET", "", "", 400, "illegal request line"),
    ],
)
async def test_requests_that_the_gateway_refuses(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    request_line: str,
    headers: str,
    request_field: str,
    status: int,
    note: str,
) -> None:
    """The broker, which does not see these requests, logs them as it logs its own refusals."""
    caplog.set_level("INFO")
    running = await start()
    version = " HTTP/1.1" if request_field else ""
    for _ in range(2):
        client = await running.socket("http")
        await client.send(f"{request_line}{version}\r\n{headers}Connection: close\r\n\r\n".encode())
        answer = await client.read_to_end()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    line = await refused(running, caplog, "http_refused")
    shown = f'request="{request_field}" ' if request_field else ""
    assert line.startswith(f"http_refused address=127.0.0.1 {shown}status={status} note=")
    assert note in line
    await running.until(lambda: running.node.refusals.counts == {"http_refused": 2})


async def test_a_malformed_header_is_not_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of a refused request must not contain a malformed header line of the request.

    The line, here with a space before the colon, may contain a password.
    """
    caplog.set_level("INFO")
    running = await start()
    client = await running.socket("http")
    login = base64.b64encode(b"known:se cret")
    await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization : Basic " + login + b"\r\n\r\n")
    assert (await client.read_to_end()).startswith(b"HTTP/1.1 400 ")
    assert await refused(running, caplog, "http_refused") == (
        'http_refused address=127.0.0.1 status=400 note="illegal header line"'
    )


async def test_paths_that_do_not_exist_are_not_logged(start: Start) -> None:
    running = await start()
    assert (await running.get("http", "/favicon.ico"))[0] == 404
    assert (await running.get("http", "/api/nope"))[0] == 404
    client = await running.socket("http")
    await client.send(b"PUT /api/nope HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    await client.read_to_end()
    await running.until(lambda: running.node.refusals.counts == {"http_refused": 1})


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed"])
async def test_metrics_of_a_user_without_the_tag(
    start: Start, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level("INFO")
    metrics = {"port": 0, "host": "127.0.0.1", "login": True}
    running = await start(users=[{**KNOWN, "tags": ["management"]}], metrics=metrics)
    login = base64.b64encode(b"known:known").decode()
    headers = f"Authorization: Basic {login}\r\n"
    assert (await running.get("metrics", path, headers))[0] == 403
    assert await refused(running, caplog, "http_refused") == (
        f'http_refused user=known address=127.0.0.1 request="GET {path}" status=403 '
        "note=\"user 'known' lacks the tag 'monitoring', which this page requires (metrics.login)\""
    )


@pytest.mark.parametrize(
    ("header", "note"),
    [
        (b"AMQP\x00\x01\x00\x00", "the client speaks AMQP 1.0; this port speaks AMQP 0-9-1"),
        (b"GET / HTTP/1.1\r\n", "the first bytes of the client are b'GET / HT'; this port speaks"),
    ],
)
async def test_a_client_of_another_protocol_at_the_amqp_port(
    running: Running, caplog: pytest.LogCaptureFixture, header: bytes, note: str
) -> None:
    caplog.set_level("INFO")
    client = await running.socket("amqp")
    await client.send(header)
    assert await client.read() == b"AMQP\x00\x00\x09\x01"
    line = await refused(running, caplog, "connection_closed")
    assert line.startswith("connection_closed protocol=amqp091") and note in line


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"AMQP\x00\x00\x09\x01", "'AMQP\\x00\\x00\\t\\x01'"),
        (b"GET / HTTP/1.1\r\n\r\n", "'GET / HT'"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "'CONNECT\\n'"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "'\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01'",
        ),
    ],
)
async def test_a_client_of_another_protocol_at_the_mqtt_port(
    running: Running, caplog: pytest.LogCaptureFixture, sent: bytes, shown: str
) -> None:
    caplog.set_level("INFO")
    client = await running.socket("mqtt")
    await client.send(sent)
    assert await client.read() == b""
    line = await refused(running, caplog, "connection_closed")
    assert line.startswith("connection_closed protocol=mqtt") and "CONNECT: use the port of" in line
    assert f"the first bytes of the client are b{shown}; this port speaks MQTT" in line.replace(
        "\\\\", "\\"
    )


@pytest.mark.parametrize(
    ("sent", "note"),
    [
        (
            upgrade("/nope", MQTT),
            "was refused: the path is unknown: MQTT over WebSocket is served at /ws",
        ),
        (upgrade("/ws", MQTT, "Origin: http://evil.example"), "pages of http://evil.example may"),
        (upgrade("/ws"), "the request offers no subprotocol of MQTT"),
        (upgrade("/ws", MQTT) + b"\x81\x80mask", "sent a text frame, and MQTT needs binary frames"),
        (upgrade("/ws", MQTT) + b"\x82\x00", "the client sent an invalid WebSocket frame"),
    ],
)
async def test_a_websocket_that_is_refused(
    start: Start, caplog: pytest.LogCaptureFixture, sent: bytes, note: str
) -> None:
    caplog.set_level("INFO")
    running = await start(ws={"enabled": True, "port": 0, "host": "127.0.0.1"})
    for _ in range(2):
        client = await running.socket("ws")
        await client.send(sent)
        await client.read_to_end()
    line = await refused(running, caplog, "connection_refused")
    assert line.startswith("connection_refused protocol=mqtt address=127.0.0.1 note=")
    assert note in line
    assert running.node.refusals.counts == {"connection_refused": 2}


@pytest.mark.parametrize(("listener", "protocol"), [("amqp", "amqp091"), ("mqtt", "mqtt")])
async def test_a_client_that_does_not_log_in(
    start: Start, caplog: pytest.LogCaptureFixture, listener: str, protocol: str
) -> None:
    caplog.set_level("INFO")
    running = await start(limits={"handshake": 0.5})
    client = await running.socket(listener)
    assert await client.read_to_end() == b""
    assert await refused(running, caplog, "connection_closed") == (
        f"connection_closed protocol={protocol} address=127.0.0.1 "
        'note="the client has not logged in within the time limit limits.handshake"'
    )


async def test_a_session_that_two_devices_use(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    devices = [await running.mqtt("device") for _ in range(3)]
    line = await refused(running, caplog, "session_taken_over")
    assert line.startswith(
        "session_taken_over protocol=mqtt user=anonymous vhost=/ address=127.0.0.1 client_id=device"
    )
    assert "two devices use one client identifier" in line
    assert running.node.refusals.counts == {"session_taken_over": len(devices) - 1}
    running.node.refusals.report()
    assert (await refused(running, caplog, "session_taken_over")).endswith("repeated=1")


async def test_topics_that_a_user_may_not_use(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for the first refused publication of each topic of a connection.

    The log also has one line for each SUBSCRIBE with refused filters.
    """
    caplog.set_level("INFO")
    rules = ["allow publish mine/#", "allow subscribe mine/#"]
    running = await start(users=[{**KNOWN, "rules": rules}])
    client = await running.mqtt("device", user="known/known")
    for number in (1, 2, 3):
        await client.socket.send(mqtt_publish("others/t", b"x", 1, number))
    line = await refused(running, caplog, "publication_refused")
    assert line.startswith(
        "publication_refused protocol=mqtt user=known vhost=/ address=127.0.0.1 client_id=device "
        "topic=others/t cause=access"
    )
    assert "others.t" in line and ' cause=access note="' in line
    assert "Further refused publications to this topic are counted" in line
    assert running.node.refusals.counts == {"publication_refused": 1}
    await client.socket.send(mqtt_publish("others/u", b"x", 1, 4))
    await running.until(lambda: "others.u" in caplog.text)
    await client.socket.send(subscribe(4, ("mine/a", 0), ("others/#", 0), ("theirs/#", 0)))
    line = await refused(running, caplog, "subscription_refused")
    assert line == (
        "subscription_refused protocol=mqtt user=known vhost=/ address=127.0.0.1 "
        'client_id=device filter=others/# cause=access note="the user may not read topics of '
        "this filter: grant `read` on the exchange, or allow the filter with a rule; further "
        'refused filters of this SUBSCRIBE: 1"'
    )
    await client.socket.exactly(4 * 4 + 7)  # Four PUBACKs, and the SUBACK.
    await client.leave()
    line = await refused(running, caplog, "publications_left_out")
    assert " client_id=device count=2 note=" in line
    assert running.node.refusals.counts == {
        "publication_refused": 2,
        "subscription_refused": 1,
        "publications_left_out": 1,
    }


async def test_malformed_packets_and_full_limits(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = await start(limits={"connections": 1, "handshake": 20})
    client = await running.mqtt("device")
    other = await running.socket("mqtt")
    assert await other.read_to_end() == b""
    assert await refused(running, caplog, "connection_refused") == (
        "connection_refused address=127.0.0.1 "
        'note="all connections are in use: raise limits.connections if it is set, and the limit of '
        'file descriptors (ulimit -n)"'
    )
    await client.socket.send(b"\xf0\x00")
    line = await refused(running, caplog, "connection_closed")
    assert line.startswith("connection_closed protocol=mqtt user=anonymous vhost=/")
    assert "client_id=device" in line and 'note="0x8' in line
