"""The web page at `/`: its files and headers, its login, its sessions, and its events."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any, Final
from unittest import mock

import pytest

from tests.foreign import require
from tests.top.api_client import ADMIN, api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running, Socket
from trellis.http import page_sessions
from trellis.http.gateway.web_page import FILES
from trellis.http.page_sessions import PageSessions
from trellis.monitoring import live_status

SIZE_MAX: Final = 80_000


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def ask(
    broker: Running, method: str, path: str, body: Any = None, headers: str = ""
) -> tuple[int, dict[str, str], bytes]:
    """Send a request without a login; return status, headers and body of the response."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: {len(data)}\r\n"
    return await broker.ask("http", f"{head}{headers}\r\n".encode() + data)


async def log_in(broker: Running, user: str = "admin", password: str = "known") -> str:
    """Log in to the web page; return the request header with the session's cookie."""
    body = {"user": user, "password": password}
    status, headers, answer = await ask(broker, "POST", "/page/login", body)
    assert status == 200, answer
    cookie = headers["set-cookie"]
    return f"Cookie: {cookie.split(';')[0]}\r\n"


async def who(broker: Running, cookie: str) -> tuple[int, Any]:
    status, headers, body = await ask(broker, "GET", "/api/trellis/page/session", headers=cookie)
    assert "www-authenticate" not in headers
    return status, json.loads(body)


# -- files


async def test_the_page_and_its_files_are_served_with_a_strict_policy(broker: Running) -> None:
    size = 0
    names = {"/"} | {f"/page/{path.name}" for path in FILES.iterdir() if path.name != "index.html"}
    for name in names:
        status, headers, body = await ask(broker, "GET", name, headers="Accept-Encoding: gzip\r\n")
        assert status == 200 and headers["content-encoding"] == "gzip"
        size += len(body)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        kind = {"js": "text/javascript", "css": "text/css", "/": "text/html"}[name.split(".")[-1]]
        assert headers["content-type"] == f"{kind}; charset=utf-8"
    assert size < SIZE_MAX
    status, _, plain = await ask(broker, "GET", "/")
    assert status == 200 and plain == (FILES / "index.html").read_bytes()


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_script_or_style() -> None:
    for path in FILES.iterdir():
        text = path.read_text()
        addresses = set(re.findall(r"https?://[\w.]+", text))
        assert addresses <= {"http://www.w3.org"}, path.name  # The namespace of SVG.
        assert "innerHTML" not in text and "eval(" not in text, path.name
    page = (FILES / "index.html").read_text()
    assert " style=" not in page and "<style" not in page and not re.search(r"\son\w+=", page)
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="/page/main.js">']


def test_node_can_load_all_modules_of_the_page() -> None:
    """Let Node.js load the modules of the web page, to find errors that prevent loading.

    Such errors are wrong syntax, a name that is exported twice, and an import of a name that the
    imported module does not export.
    """
    node, main = require("node"), FILES / "main.js"
    source = f"import('{main.as_uri()}').catch((error) => console.log(error.message))"
    command = [node, "--input-type=module", "--experimental-default-type=module", "-e", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # All modules are linked before the first one needs the document of a browser.
    assert (done.returncode, done.stdout) == (0, "document is not defined\n"), done.stderr


async def test_unknown_files_and_methods_are_refused(broker: Running) -> None:
    for path in ("/page/absent.js", "/page/", "/page/../api.py", "/page/%2e%2e/x"):
        assert (await ask(broker, "GET", path))[0] == 404
    assert (await ask(broker, "PUT", "/page/main.js"))[0] == 405
    assert (await ask(broker, "DELETE", "/"))[0] == 405
    status, headers, body = await ask(broker, "HEAD", "/")
    assert status == 200 and body == b"" and int(headers["content-length"]) > 0


# -- login


async def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(
    broker: Running,
) -> None:
    body = {"user": "admin", "password": "known"}
    status, headers, answer = await ask(broker, "POST", "/page/login", body)
    assert status == 200
    assert json.loads(answer) == {
        "user": "admin",
        "tags": ["administrator"],
        "node": broker.node.broker.name,
    }
    name, *flags = headers["set-cookie"].split("; ")
    assert name.startswith("trellis-1=") and len(name) > 40
    assert {flag.lower() for flag in flags} == {"httponly", "path=/", "samesite=strict"}
    cookie = f"Cookie: {name}\r\n"
    assert (await who(broker, cookie))[1]["user"] == "admin"
    status, _, rows = await ask(broker, "GET", "/api/queues", headers=cookie)
    assert (status, json.loads(rows)) == (200, [])
    # Browsers send the cookies of all programs on the host; some have invalid names or values.
    for foreign in ('state={"a": 1}', "a[b]=1", "a@b=1", "flag", 'open="', "expires=1", "n=\xe9"):
        for text in (f"{foreign}; {name}", f"{name}; {foreign}"):
            assert (foreign, (await who(broker, f"Cookie: {text}\r\n"))[0]) == (foreign, 200)
    # The cookie of another port does not count.
    other = cookie.replace("trellis-1=", "trellis-2=")
    assert (await ask(broker, "GET", "/api/queues", headers=other))[0] == 401


async def test_a_wrong_password_opens_no_session_and_no_window(broker: Running) -> None:
    for login in ({"user": "admin", "password": "wrong"}, {"user": "absent", "password": ""}):
        status, headers, _ = await ask(broker, "POST", "/page/login", login)
        assert status == 401 and "www-authenticate" not in headers and "set-cookie" not in headers
    wrong: tuple[Any, ...] = ([], {"user": "admin"}, {"user": 1, "password": "x"})
    for body in wrong:
        assert (await ask(broker, "POST", "/page/login", body))[0] == 400
    large = {"user": "admin", "password": "x" * 5_000}
    assert (await ask(broker, "POST", "/page/login", large))[0] == 413


async def test_a_request_of_the_page_opens_no_window_of_the_browser(broker: Running) -> None:
    for mark, asks in (("", True), ("X-Trellis-Page: 1\r\n", False)):
        status, headers, _ = await ask(broker, "GET", "/api/queues", headers=mark)
        assert status == 401 and ("www-authenticate" in headers) == asks


async def test_a_page_of_another_site_can_neither_log_in_nor_out_nor_change(
    broker: Running,
) -> None:
    cookie = await log_in(broker)
    body = {"user": "admin", "password": "known"}
    for foreign in ("Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"):
        assert (await ask(broker, "POST", "/page/login", body, foreign))[0] == 403
        assert (await ask(broker, "POST", "/page/logout", headers=foreign + cookie))[0] == 403
        status = (await ask(broker, "PUT", "/api/queues/%2F/q", {}, foreign + cookie))[0]
        assert status == 403
    assert (await who(broker, cookie))[0] == 200
    assert broker.node.broker.vhosts["/"].queues == {}


async def test_a_logout_ends_the_session(broker: Running) -> None:
    cookie, other = await log_in(broker), await log_in(broker)
    status, headers, _ = await ask(broker, "POST", "/page/logout", headers=cookie)
    assert status == 200 and "Max-Age=0" in headers["set-cookie"]
    status, answer = await who(broker, cookie)
    assert (
        status == 401 and answer["reason"] == "the session of the web page has ended: log in again"
    )
    assert (await who(broker, other))[0] == 200
    assert (await ask(broker, "POST", "/page/logout", headers=cookie))[0] == 401


async def test_rights_are_the_present_rights_of_the_user(broker: Running) -> None:
    assert (await api(broker, "PUT", "users/eve", {"password": "a", "tags": "administrator"}))[
        0
    ] == 201
    cookie = await log_in(broker, "eve", "a")
    assert (await ask(broker, "GET", "/api/users", headers=cookie))[0] == 200
    hashed = broker.node.broker.users.by_name["eve"].password_hash
    change = {"password_hash": hashed, "tags": "management"}
    assert (await api(broker, "PUT", "users/eve", change))[0] == 204
    assert (await ask(broker, "GET", "/api/users", headers=cookie))[0] == 403
    assert (await who(broker, cookie))[1]["tags"] == ["management"]


async def test_another_password_or_a_deletion_ends_the_session(broker: Running) -> None:
    for change in (("PUT", {"password": "b", "tags": "management"}), ("DELETE", None)):
        body = {"password": "a", "tags": "management"}
        assert (await api(broker, "PUT", "users/eve", body))[0] == 201
        cookie = await log_in(broker, "eve", "a")
        assert (await who(broker, cookie))[0] == 200
        assert (await api(broker, change[0], "users/eve", change[1]))[0] == 204
        assert (await who(broker, cookie))[0] == 401
        await api(broker, "DELETE", "users/eve")


async def test_a_session_of_this_machine_is_of_no_use_behind_a_proxy(start: Start) -> None:
    here = ADMIN | {"name": "here", "loopback_only": True}
    broker = await start(users=[KNOWN, here])
    cookie = await log_in(broker, "here")
    assert (await who(broker, cookie))[0] == 200
    proxied = cookie + "X-Forwarded-For: 10.0.0.9\r\n"
    status, _, _ = await ask(broker, "GET", "/api/trellis/page/session", headers=proxied)
    assert status == 401
    assert (await who(broker, cookie))[0] == 401, "the session has ended"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_sessions_end_by_time_and_are_bounded(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sessions, "SESSIONS_MAX", 3)
    clock = Clock()
    sessions = PageSessions(broker.node, clock)
    admin = broker.node.accounts.settings_accounts["admin"].identity
    idle, used = sessions.open(admin, True), sessions.open(admin, True)
    while clock.now < page_sessions.LONGEST_SECONDS:
        assert sessions.find(used, True) is admin
        clock.now += page_sessions.IDLE_SECONDS - 1
        if clock.now < page_sessions.IDLE_SECONDS:
            assert sessions.find(idle, True) is admin
    assert sessions.find(used, True) is None and sessions.find(idle, True) is None
    tokens = [sessions.open(admin, True) for _ in range(4)]
    assert [sessions.find(token, True) is not None for token in tokens] == [False, True, True, True]
    assert len(sessions) == 3 and sessions.find("", True) is None


# -- events


async def events(client: Socket, count: int) -> list[dict[str, Any]]:
    """Read the next `count` events of a stream of server-sent events, and return their data."""
    received: list[dict[str, Any]] = []
    text = b""
    while len(received) < count:
        data = await client.read()
        assert data, text
        text += data
        received = [json.loads(line) for line in re.findall(rb"^data: (\{.+\})\r?$", text, re.M)]
    return received[:count]


async def watch(broker: Running, cookie: str) -> Socket:
    client = await broker.socket("http")
    await client.send(f"GET /page/events HTTP/1.1\r\nHost: localhost:1\r\n{cookie}\r\n".encode())
    return client


async def test_viewers_share_one_sample_a_second(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_times: list[float] = []
    monkeypatch.setattr(live_status, "MessageFlow", _counted(live_status.MessageFlow, sample_times))
    cookies = [await log_in(broker) for _ in range(3)]
    viewers = [await watch(broker, cookie) for cookie in cookies]
    received = [await events(viewer, 3) for viewer in viewers]
    assert [one["node"] for one in received[0]] == [broker.node.broker.name] * 3
    # Each new viewer gets one sample made for it; later samples are made once for all viewers.
    assert len(sample_times) <= 3 + len(viewers)
    status, headers, _ = await ask(broker, "GET", "/page/events")
    assert status == 401 and "www-authenticate" not in headers
    plain = await log_in(broker, "known")
    assert (await ask(broker, "GET", "/page/events", headers=plain))[0] == 403


def _counted(kind: type[Any], sample_times: list[float]) -> type[Any]:
    class Counted(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            sample_times.append(self.at)

    return Counted


async def test_an_event_shows_flow_totals_alarms_and_refusals(broker: Running) -> None:
    cookie = await log_in(broker)
    client = await broker.amqp()
    await client.queue("deep")
    viewer = await watch(broker, cookie)
    await events(viewer, 1)
    message = {"properties": {}, "payload": "x", "payload_encoding": "string"}
    for key in ("deep", "deep", "absent"):
        path = "exchanges/%2F/amq.default/publish"
        assert (await api(broker, "POST", path, message | {"routing_key": key}))[0] == 200
    assert (await api(broker, "GET", "queues", password="wrong"))[0] == 401
    broker.node.broker.alarms.set("flood", True)
    while True:
        (one,) = await events(viewer, 1)
        if one["messages_ready"] == 2:
            break
    assert one["counts"]["in"] == 3 and one["counts"]["unroutable"] == 1
    deep = {"vhost": "/", "name": "deep", "session": False, "messages": 2, "consumers": 0}
    assert one["deepest"] == one["slowest"] == [deep | {"head_age_ms": mock.ANY}]
    assert one["unroutable_topics"] == [
        {"vhost": "/", "exchange": "", "routing_key": "absent", "messages": 1}
    ]
    assert one["alarms"] == ["flood"] and one["connections"] == {"amqp": 1, "mqtt": 0}
    assert one["refusals"][0]["event"] == "login_refused"
    broker.node.broker.alarms.set("flood", False)


async def test_the_events_of_a_user_who_loses_the_right_end(broker: Running) -> None:
    body = {"password": "a", "tags": "monitoring"}
    assert (await api(broker, "PUT", "users/eve", body))[0] == 201
    mine = await watch(broker, await log_in(broker))
    cookie = await log_in(broker, "eve", "a")
    viewer = await watch(broker, cookie)
    await events(viewer, 1)
    assert (await api(broker, "DELETE", "users/eve"))[0] == 204
    text = b""
    while data := await viewer.read():
        text += data
        if b"event: ended" in text:
            break
    assert b"event: ended" in text
    assert len(await events(mine, 2)) == 2, "the other viewer gets further events"
