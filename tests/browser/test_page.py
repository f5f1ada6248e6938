"""The broker's web page in a headless Chromium: all views, narrow and dark screens, a restart."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import trellis
from tests.broker import BrokerProcess
from tests.clients import connect_packet, mqtt_publish
from tests.foreign import require
from tests.top.running import KNOWN

#: True if the broker runs uncompiled, and logs that.
PURE: Final = not trellis.compiled()
HERE: Final = Path(__file__).parent
VIEWS: Final = ["Now", "Queues", "Topics", "Clients", "Routing", "Access", "Streams", "Node"]
#: Number of queues and number of clients of the busy broker.
QUEUES, CLIENTS = 10_000, 5_000
#: View -> selector of an element that the view shows once it is complete.
COMPLETE: Final = {
    "#/now": ".sentence b",
    "#/queues": "caption, p.soft",
    "#/topics": "#content [role=status]",
    "#/clients": "section caption, section p.soft",
    "#/routing": ".graph, #content p.soft",
    "#/access": "caption",
    "#/streams": "caption, p.soft",
    "#/node": "caption",
}

pytestmark = pytest.mark.long


class Page:
    """The web page of a broker in a browser process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, action: str, **given: Any) -> Any:
        """Let page.mjs run the command `action` with the arguments `given`; return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": action, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the browser ended"
        answer = json.loads(line)
        assert "failed" not in answer, answer["failed"]
        return answer

    def check(self, name: str, width: int) -> None:
        """Take the screenshot `name`, and check the page: accessible, at most `width` pixels wide,
        no word of a card's label broken, nothing loaded from other hosts."""
        seen = self.do("picture", name=name)
        assert seen["serious"] == [] and seen["complaints"] == [] and seen["elsewhere"] == []
        assert seen["wide"] <= width and seen["broken"] == []

    def open(
        self,
        place: str,
        until: str,
        width: int = 1280,
        scheme: str = "light",
        login: tuple[str, str] = ("admin", "known"),
    ) -> None:
        """Open a new browser, log in, and show the view at `place`, such as "#/node".

        The view is complete once it has an element with the selector `until`.
        """
        self.do("open", width=width, scheme=scheme)
        self.log_in(*login)
        self.do("view", hash=place, until=until)

    def log_in(self, user: str = "admin", password: str = "known") -> None:
        answer = self.do("login", user=user, password=password)
        assert answer["views"] == VIEWS


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    hashed = json.dumps(KNOWN["password_hash"])
    path.write_text(
        f'[[users]]\nname = "admin"\nadministrator = true\npassword_hash = {hashed}\n'
        f'[[users]]\nname = "known"\npassword_hash = {hashed}\n'
    )
    return path


@pytest.fixture
def broker(settings: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess("--config", str(settings), "--data-dir", str(tmp_path / "data"))
    yield process
    if process.process.poll() is None:
        process.stop()


@pytest.fixture
def page(broker: BrokerProcess, tmp_path: Path) -> Iterator[Page]:
    with browser_at(f"http://127.0.0.1:{broker.addresses['http'].port}/", tmp_path) as page:
        yield page


@contextmanager
def browser_at(url: str, pictures: Path) -> Iterator[Page]:
    """Run a browser for the page at `url`; it writes screenshots to the directory `pictures`."""
    require("browser")
    with subprocess.Popen(
        ["node", "page.mjs", url, str(pictures)],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Page(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark"), (3840, "light")])
def test_all_views_of_an_empty_broker(page: Page, width: int, scheme: str) -> None:
    page.do("open", width=width, scheme=scheme)
    page.check("login", width)
    page.log_in()
    for view, complete in COMPLETE.items():
        page.do("view", hash=view, until=complete)
        page.check(view[2:], width)
    assert page.do("press", key="/")["focused"] == "needle"


def test_a_wrong_password_is_told_and_a_logout_ends_the_session(page: Page) -> None:
    page.do("open", width=1280)
    answer = page.do("login", user="admin", password="wrong")
    assert answer == {"views": [], "alerts": ["The user name or the password is wrong."]}
    page.log_in()
    page.do("click", selector="#who button")
    page.do("wait", selector="h1", text="Log in to Trellis")
    page.check("logged-out", 1280)


def api(broker: BrokerProcess, method: str, path: str, body: object = None) -> Any:
    """Send a request of the administrator to the HTTP API; return the decoded answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.addresses['http'].port}/api/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": "Basic " + base64.b64encode(b"admin:known").decode()},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        data = answer.read()
    return json.loads(data) if data else None


def publish(broker: BrokerProcess, queue: str, count: int) -> None:
    message = {
        "properties": {},
        "routing_key": queue,
        "payload": '{"order": 7}',
        "payload_encoding": "string",
    }
    for _ in range(count):
        api(broker, "POST", "exchanges/%2F/amq.default/publish", message)


def test_a_queue_is_explained_looked_into_and_purged(page: Page, broker: BrokerProcess) -> None:
    api(broker, "PUT", "queues/%2F/orders", {"durable": True})
    binding = {"routing_key": "orders.#"}
    api(broker, "POST", "bindings/%2F/e/amq.topic/q/orders", binding)
    publish(broker, "orders", 3)
    page.open("#/queue/%2F/orders", "#content .warn")
    page.do("wait", selector="#content li", text="no consumer is connected, and 3 messages wait")
    page.do("click", selector="text=Look at the first messages")
    page.do("wait", selector="pre", text='"order": 7')
    page.check("queue", 1280)
    page.do("click", selector="text=Purge…")
    page.do("wait", selector="dialog", text="3 messages of queue orders will be discarded")
    page.check("purge", 1280)
    page.do("click", selector="dialog .danger")
    page.do("wait", selector=".card", text="0ready")
    assert api(broker, "GET", "queues/%2F/orders")["messages"] == 0


def test_a_route_is_explained_with_near_misses(page: Page, broker: BrokerProcess) -> None:
    api(broker, "PUT", "queues/%2F/temps", {})
    api(broker, "POST", "bindings/%2F/e/amq.topic/q/temps", {"routing_key": "plant.*.temp"})
    page.open("#/routing", ".graph")
    page.do("fill", selector="#content input[placeholder]", text="plant/7/Temp")
    page.do("click", selector="text=Explain")
    page.do("wait", selector="#content li", text="only upper and lower case differ")
    page.check("near-miss", 1280)
    page.do("view", hash="#/access", until="caption")
    page.do("fill", selector="#content input[placeholder]", text="plant/7/temp")
    page.do("click", selector="text=Check")
    page.do("wait", selector="#content p", text="Yes: user")
    page.do("fill", selector="input[placeholder='plant/+/secret']", text="plant/+/secret")
    page.do("click", selector="button:text-is('List')")
    page.do("wait", selector="#content td", text="all topics")
    page.do("wait", selector="#content .command", text="permissions readers plant/+/secret")
    page.check("rights", 1280)


def test_an_explanation_with_many_queues_is_cut_and_says_so(
    page: Page, broker: BrokerProcess
) -> None:
    rows = [
        {"name": f"q{number}", "vhost": "/", "durable": False, "arguments": {}}
        for number in range(600)
    ]
    bindings = [
        {"source": "amq.topic", "vhost": "/", "destination": row["name"], "routing_key": "plant.#"}
        | {"destination_type": "queue", "arguments": {}}
        for row in rows
    ]
    api(broker, "POST", "definitions", {"queues": rows, "bindings": bindings})
    page.open("#/routing", ".graph")
    page.do("fill", selector="#content input[placeholder]", text="plant/7")
    page.do("click", selector="text=Explain")
    page.do("wait", selector=".tree li", text="… and 100 more bindings")
    page.do("wait", selector="#content p", text="… and 100 more queues with the verdict “takes”")
    page.check("many-queues", 1280)


def test_a_queue_is_paused_and_its_messages_are_moved(page: Page, broker: BrokerProcess) -> None:
    for name in ("orders", "later"):
        api(broker, "PUT", f"queues/%2F/{name}", {"durable": True})
    publish(broker, "orders", 4)
    page.open("#/queue/%2F/orders", "#content .warn")
    page.do("click", selector="text=Pause")
    page.do("wait", selector="button", text="Resume")
    (row,) = (each for each in api(broker, "GET", "trellis/queues") if each["name"] == "orders")
    assert row["paused"]
    page.do("click", selector="text=Resume")
    page.do("wait", selector="button", text="Pause")
    page.do("fill", selector="#to", text="later")
    page.do("click", selector="text=Move…")
    page.do("wait", selector="dialog", text="4 to queue later")
    page.check("move", 1280)
    page.do("click", selector="dialog .danger")
    page.do("wait", selector="#content p", text="4 of 4 messages are moved")
    assert api(broker, "GET", "queues/%2F/later")["messages"] == 4


def test_topics_are_shown_published_and_removed(page: Page, broker: BrokerProcess) -> None:
    page.open("#/topics", "#content [role=status]")
    page.do("fill", selector="#content input[placeholder]", text="plant/7/temp")
    page.do("fill", selector="form:last-of-type input:not([placeholder]):not([type])", text="21.5")
    page.do("click", selector="#content input[type=checkbox]")
    page.do("click", selector="button:text-is('Publish')")
    page.do("wait", selector="#content .tree code", text="21.5")
    page.check("topics-tree", 1280)
    page.do("click", selector="text=Remove retained messages…")
    page.do("wait", selector="dialog", text="1 retained messages of topics that match #")
    page.do("click", selector="dialog .danger")
    page.do("wait", selector="#content p", text="0 topics have a retained message")
    assert api(broker, "GET", "retained/%2F") == []


def test_the_number_of_retained_topics_that_are_not_shown_is_exact(
    page: Page, broker: BrokerProcess
) -> None:
    client = socket.create_connection(("127.0.0.1", broker.mqtt.port), timeout=30)
    with client:
        client.sendall(connect_packet("device", user="known/known"))
        assert client.recv(4)[3] == 0
        client.sendall(
            b"".join(mqtt_publish(f"plant/{number}", b"x", flags=1) for number in range(1_234))
        )
        client.sendall(b"\xc0\x00")
        assert client.recv(2) == b"\xd0\x00"  # The messages before the PINGREQ are retained.
        page.open("#/topics", "#content [role=status]")
        notice = "The first 1,000 of 1,234 topics with a retained message are shown"
        page.do("wait", selector="#content p", text=notice)


def test_topics_are_watched_live(page: Page, broker: BrokerProcess) -> None:
    page.open("#/topics", "#content [role=status]")
    page.do("click", selector="text=Watch live")
    page.do("wait", selector="#content p", text="No message has arrived yet.")
    for number in range(250):
        body = {"properties": {}, "payload": f"{number}", "payload_encoding": "string"}
        body["routing_key"] = f"plant.{number:03}.temp"
        api(broker, "POST", "exchanges/%2F/amq.topic/publish", body)
    notice = "250 messages of 250 topics. 50 topics are not shown: give a narrower filter."
    page.do("wait", selector="#content p", text=notice)
    page.do("wait", selector="#content .tree li", text="007/temp 7 ")
    page.check("topics-live", 1280)
    page.do("click", selector="button:text-is('Stop')")
    page.do("wait", selector="#content button", text="Watch live")
    page.do("view", hash="#/queues", until="caption, p.soft")
    page.do("wait", selector="#content p", text="There is no queue yet")


def test_a_binding_is_tried_and_nothing_changes(page: Page, broker: BrokerProcess) -> None:
    for name in ("temps", "all"):
        api(broker, "PUT", f"queues/%2F/{name}", {})
    api(broker, "POST", "bindings/%2F/e/amq.topic/q/temps", {"routing_key": "plant.*.temp"})
    for number in range(5):
        for key in ("plant.7.temp", f"plant.{number}.load"):
            message = {"routing_key": key, "payload": "1", "payload_encoding": "string"}
            api(
                broker,
                "POST",
                "exchanges/%2F/amq.topic/publish",
                message | {"properties": {}},
            )
    for width, scheme in ((1280, "light"), (360, "dark")):
        page.open("#/routing", ".graph a", width, scheme)
        page.do("click", selector=".graph a")
        page.do("wait", selector="#try li", text="without “plant.*.temp” of amq.topic")
        page.do("fill", selector="#try form input >> nth=1", text="plant.#")
        page.do("choose", selector="#try form select >> nth=0", value="add")
        page.do("fill", selector="#try form input >> nth=2", text="all")
        page.do("click", selector="text=Add to the trial")
        page.do("click", selector="text=Try it >> nth=-1")
        page.do("wait", selector="#try p", text="tried on 6 topics with 10 messages of the last")
        page.do("wait", selector="#try tr", text="queue temps" + "loses" + "5" + "1")
        page.do("wait", selector="#try tr", text="queue all" + "gains" + "10" + "6")
        page.do("wait", selector="#try tr", text="plant/3/load" + "amq.topic" + "all" + "gains")
        page.do("wait", selector="#try .command", text="--remove amq.topic 'plant.*.temp' temps")
        page.check("sandbox", width)
    assert len(api(broker, "GET", "queues/%2F/temps/bindings")) == 2


def test_a_stream_is_read_tailed_exported_and_replayed(page: Page, broker: BrokerProcess) -> None:
    api(
        broker,
        "PUT",
        "queues/%2F/rows",
        {"durable": True, "arguments": {"x-queue-type": "stream"}},
    )
    api(broker, "PUT", "queues/%2F/copies", {"durable": True})
    api(broker, "POST", "bindings/%2F/e/amq.fanout/q/copies", {"routing_key": ""})
    publish(broker, "rows", 5)
    page.open("#/streams", "caption")
    page.check("stream-list", 1280)
    page.do("click", selector="#content td a")
    page.do("wait", selector="#content p", text="Rows 0 to 4.")
    page.do("click", selector="text=Tail")
    page.do("wait", selector="#content p", text="The newest row comes first")
    publish(broker, "rows", 2)
    page.do("wait", selector="tbody tr:first-child td:first-child", text="6")
    page.do("click", selector="button:text-is('Stop')")
    page.check("stream", 1280)
    saved = page.do("download", selector="text=Arrow file")["path"]
    assert pa.ipc.open_stream(saved).read_all().num_rows >= 5
    page.do("fill", selector="input[placeholder='the exchange of each row']", text="amq.fanout")
    page.do("fill", selector="input[type=number] >> nth=1", text="3")
    page.do("click", selector="text=Replay…")
    page.do("wait", selector="dialog", text="Up to 3 messages, the rows from offset 0 to 2")
    page.do("click", selector="dialog .danger")
    page.do("wait", selector="#content p", text="3 messages are published and confirmed, 0 were")
    assert api(broker, "GET", "queues/%2F/copies")["messages"] == 3
    page.open("#/stream/%2F/rows", "#content tbody tr", 360, "dark")
    page.do("wait", selector="#content p", text="Rows 0 to 6.")
    page.check("stream", 360)


def test_the_node_shows_its_log_and_takes_definitions(
    page: Page, broker: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    queue = {"name": "imported", "vhost": "/", "durable": True, "arguments": {}}
    file.write_text(json.dumps({"queues": [queue, {"name": "wrong", "vhost": "absent"}]}))
    page.open("#/node", "caption")
    page.do("wait", selector=".card", text="queues and inboxes of sessions")
    page.do("wait", selector="#content td", text="not_compiled" if PURE else "start")
    page.do("choose", selector="#content section select", value="error")
    page.do("wait", selector="#content caption, #content p", text="No event has this level")
    page.do("click", selector="#content input[type=checkbox]")
    page.do("wait", selector="#content td", text="limits.connections")
    page.do("upload", selector="input[type=file]", path=str(file))
    page.do("click", selector="text=Import…")
    page.do("wait", selector="dialog", text="will be imported: queues: 1")
    page.check("import", 1280)
    page.do("click", selector="dialog .danger")
    page.do("wait", selector="#content p", text="Imported: queues: 1. Refused: 1.")
    assert api(broker, "GET", "queues/%2F/imported")["durable"]


def test_what_a_consumer_holds_and_one_client_of_many_are_shown(
    page: Page, broker: BrokerProcess
) -> None:
    publish_to = {"durable": True}
    api(broker, "PUT", "queues/%2F/orders", publish_to)
    publish(broker, "orders", 12)
    client = socket.create_connection(("127.0.0.1", broker.mqtt.port), timeout=30)
    client.sendall(connect_packet("device-7", user="known/known"))
    assert client.recv(4)[3] == 0
    with client:
        page.open("#/client/device-7", "caption")
        page.do("wait", selector="caption", text="1 of 1 open connections of the client")
        page.do("view", hash="#/queue/%2F/orders", until="#content .warn")
        page.do("choose", selector="#as", value="hex")
        page.do("click", selector="text=Look at the first messages")
        page.do("wait", selector="pre", text="7b 22 6f 72 64 65 72 22")
        page.do("click", selector="text=Ten more")
        page.do("choose", selector="#as", value="text")
        page.do("wait", selector="#content li:nth-child(12) pre", text='{"order": 7}')


def test_an_alarm_is_shown(settings: Path, page: Page, broker: BrokerProcess) -> None:
    page.do("open", width=1280)
    page.log_in()
    page.do("wait", selector=".sentence", text="messages/s come in")
    broker.stop()
    page.do("wait", selector="#notice", text="The broker does not answer")
    port = str(broker.addresses["http"].port)
    again = BrokerProcess(
        "--config", str(settings), "--http-port", port, "--limits-memory", "0.0005"
    )
    try:
        # The sessions of the page end with the broker.
        page.do("wait", selector="h1", text="Log in to Trellis")
        page.log_in()
        page.do("wait", selector="[role=alert]", text="Alarm: memory")
        page.check("alarm", 1280)
    finally:
        again.stop()


def test_a_busy_broker(page: Page, broker: BrokerProcess) -> None:
    rows = [
        {"name": f"queue-{number:05}", "vhost": "/", "durable": False, "arguments": {}}
        for number in range(QUEUES)
    ]
    assert api(broker, "POST", "definitions", {"queues": rows})["refused"] == []
    publish(broker, "queue-00042", 5)
    clients = []
    try:
        for number in range(CLIENTS):
            client = socket.create_connection(("127.0.0.1", broker.mqtt.port), timeout=30)
            client.sendall(connect_packet(f"device-{number:04}", user="known/known"))
            assert client.recv(4)[3] == 0
            clients.append(client)
        for width, scheme in ((1280, "light"), (360, "dark")):
            page.do("open", width=width, scheme=scheme)
            page.log_in()
            page.do("wait", selector=".card", text=f"{CLIENTS:,}MQTT connections")
            page.check("busy-now", width)
            page.do("view", hash="#/queues", until="caption")
            page.do("wait", selector="caption", text=f"{QUEUES:,} of {QUEUES:,} queues")
            page.do("wait", selector="tbody td", text="queue-00042")
            page.check("busy-queues", width)
            page.do("view", hash="#/clients", until="section caption")
            page.do("wait", selector="caption", text=f"{CLIENTS:,} of {CLIENTS:,} connections")
            page.check("busy-clients", width)
            page.do("view", hash="#/find/device-0007", until="#content table")
            page.do("wait", selector="#content td a", text="device-0007")
    finally:
        for client in clients:
            client.close()
