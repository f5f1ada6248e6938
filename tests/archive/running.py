"""A broker process with an archive, and its clients."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.archive.s3_server import CREDENTIALS
from tests.broker import BrokerProcess, environment

#: Size of a segment in bytes: about 40 rows whose bodies come from `body`.
SEGMENT: Final = 30_000
#: The stream keeps about three segments.
KEPT: Final = 3 * SEGMENT


def body(number: int) -> bytes:
    return b"%06d" % number * 50


class ArchivingBroker(BrokerProcess):
    """A broker that uploads its streams to an archive."""

    def __init__(self, data: Path, url: str, *flags: str) -> None:
        super().__init__(
            "--data-dir", str(data), "--stream-archive", url, *flags, variables=CREDENTIALS
        )

    @property
    def url(self) -> str:
        host, port = self.addresses["http"]
        return f"http://{host}:{port}"

    # -- clients

    def channel(self) -> BlockingChannel:
        parameters = pika.ConnectionParameters(*self.amqp)
        return pika.BlockingConnection(parameters).channel()

    def declare(self, name: str = "s", **arguments: Any) -> None:
        channel = self.channel()
        channel.queue_declare(
            name,
            durable=True,
            arguments={
                "x-queue-type": "stream",
                "x-stream-max-segment-size-bytes": SEGMENT,
                "x-max-length-bytes": KEPT,
                **{key.replace("_", "-"): value for key, value in arguments.items()},
            },
        )
        channel.connection.close()

    def publish(self, first: int, end: int, name: str = "s") -> None:
        """Publish the numbered messages from `first` up to, not including, `end`."""
        channel = self.channel()
        confirming = channel.connection.channel()
        confirming.confirm_delivery()
        for number in range(first, end):
            # Wait for the confirm of every 20th message, so that no batch has many rows.
            last = number == end - 1 or number % 20 == 19
            (confirming if last else channel).basic_publish("", name, body(number))
        channel.connection.close()

    def read(
        self, end: int, offset: Any = "first", name: str = "s", seconds: float = 60
    ) -> list[tuple[int, bytes]]:
        """Return (offset, body) of the rows from `offset` on, as a consumer gets them.

        The last row has the offset `end` - 1. `seconds` is the longest time to wait for a row.
        """
        channel = self.channel()
        channel.basic_qos(prefetch_count=100)
        rows: list[tuple[int, bytes]] = []
        arguments = {"x-stream-offset": offset}
        for method, properties, data in channel.consume(
            name, arguments=arguments, inactivity_timeout=seconds
        ):
            assert method is not None, f"no row came after {rows[-1:]}: {self.log}"
            rows.append((properties.headers["x-stream-offset"], data))
            channel.basic_ack(method.delivery_tag)
            if rows[-1][0] >= end - 1:
                break
        channel.connection.close()
        return rows

    def get(self, path: str, **query: Any) -> Any:
        """Get a path of the HTTP API; return the answer's JSON. Raises HTTPError for a refusal."""
        return json.loads(self.get_bytes(path, **query))

    def get_bytes(self, path: str, **query: Any) -> bytes:
        """Get a path of the HTTP API; return the answer. Raises HTTPError for a refusal."""
        request = urllib.request.Request(f"{self.url}/api/{path}?{urlencode(query)}")
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
            return content

    def refusal(self, path: str, **query: Any) -> tuple[int, str]:
        """Get a path of the HTTP API, which must be refused; return the status and the reason."""
        try:
            self.get(path, **query)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["reason"]
        raise AssertionError(f"{path} was not refused")

    def trellis(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of trellis against this broker."""
        return subprocess.run(
            [sys.executable, "-m", "trellis", *words, "--url", self.url],
            env=environment(),
            capture_output=True,
            text=True,
        )

    def states(self) -> Iterator[dict[str, Any]]:
        """Ask the broker for the state of its archive again and again; yield each answer."""
        while self.process.poll() is None:
            yield self.get("streams/archive")
        raise AssertionError(self.log)

    def wait(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the state of the archive fulfils a condition, and return the state."""
        return next(state for state in self.states() if reached(state))

    def wait_uploaded(self) -> dict[str, Any]:
        """Wait until no segment waits for its upload."""
        return self.wait(lambda state: state["waiting_segments"] == 0)
