"""Tests of live.html, which connects over WebSocket, in a headless Chromium: topics, origins."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import paho.mqtt.publish
import pytest

from tests.broker import BrokerProcess
from tests.foreign import require

HERE: Final = Path(__file__).parent

pytestmark = pytest.mark.long


class Quiet(SimpleHTTPRequestHandler):
    """An HTTP request handler that serves files without logging."""

    # The name `format` of the argument comes from the base class.
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """Serve the directory of this module on a local port; yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=HERE)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Page:
    """The page live.html in a process with a browser."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def state(self) -> dict[str, Any]:
        """Return the next state of the page, as the browser process prints it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the browser ended"
        state: dict[str, Any] = json.loads(line)
        return state

    def complete(self) -> dict[str, Any]:
        """Wait until the page shows all expected rows, and return its state."""
        assert self._process.stdin is not None
        self._process.stdin.write("rows\n")
        self._process.stdin.flush()
        return self.state()


@contextmanager
def opened(url: str, screenshot: Path, rows: int) -> Iterator[Page]:
    require("browser")
    with subprocess.Popen(
        ["node", "open.mjs", url, str(screenshot), str(rows)],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Page(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess("--ws-enabled", "true", "--ws-port", "0")
    yield process
    process.stop()


def publish(broker: BrokerProcess, topic: str, *values: str) -> None:
    host, port = broker.mqtt
    paho.mqtt.publish.multiple([(topic, value, 1, False) for value in values], host, port)


def test_the_page_shows_topics_as_they_are_published(
    broker: BrokerProcess, site: str, tmp_path: Path
) -> None:
    picture = Path(os.environ.get("TRELLIS_PICTURES", tmp_path)) / "live.png"
    url = f"{site}/live.html#url=ws://127.0.0.1:{broker.addresses['ws'].port}/ws&filter=house/%23"
    with opened(url, picture, 5) as page:
        assert page.state()["state"] == 'connected, "house/#"'
        publish(broker, "house/note", "<b>not bold</b>")
        for room, base in (("kitchen", 21.0), ("cellar", 12.5), ("attic", 27.2)):
            publish(
                broker,
                f"house/{room}/temperature",
                *(f"{base + (number * 7 % 11) / 10:.1f}" for number in range(40)),
            )
        publish(broker, "elsewhere", "1", "2")
        # The page receives this message after all others.
        publish(broker, "house/window", "open")
        shown = page.complete()
    assert shown["complaints"] == []
    assert [row[:2] for row in shown["table"]] == [
        ["house/attic/temperature", "28.1"],
        ["house/cellar/temperature", "13.4"],
        ["house/kitchen/temperature", "21.9"],
        ["house/note", "<b>not bold</b>"],
        ["house/window", "open"],
    ]
    assert [row[3] for row in shown["table"]] == ["40", "40", "40", "1", "1"]
    assert picture.stat().st_size > 10_000


def test_a_page_of_another_host_shows_that_it_is_not_connected(
    broker: BrokerProcess, site: str, tmp_path: Path
) -> None:
    """Check that the broker refuses a page whose origin, in the Origin header, is another host."""
    page_url = f"{site.replace('127.0.0.1', 'other.localhost')}/live.html"
    url = f"{page_url}#url=ws://127.0.0.1:{broker.addresses['ws'].port}/ws"
    with opened(url, tmp_path / "refused.png", 0) as page:
        assert page.state()["state"].startswith("not connected")
