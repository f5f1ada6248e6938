"""`trellis tail`: prints the messages of an exchange or of MQTT topics while they are published.

The messages come through a temporary queue that is bound to the exchange. The length of the queue
is limited. If messages come faster than the command prints them, the queue drops the oldest
messages, and the command prints their number. When the command ends, it deletes the queue. If the
command was killed, the queue expires after EXPIRES_MS.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from broker.errors import BrokerError
from matching.grammar import swap
from trellis.cli.actions import add_vhost
from trellis.cli.api_client import ApiClient, ApiRefused, add_login
from trellis.cli.parsing import CommandError, Commands, add_command, number
from trellis.cli.peek import message_lines
from trellis.cli.readable import count_text
from trellis.monitoring.route_question import header_of

#: Time without a request after which the broker deletes the temporary queue, in ms.
EXPIRES_MS: Final = 60_000
#: Largest total size of the bodies that wait in the temporary queue, in bytes.
BYTES_MAX: Final = 16 << 20
#: Largest number of messages that one request fetches.
FETCHED: Final = 200
#: Seconds between two requests that find no message.
PAUSE: Final = 0.2
_TOPICS: Final = "amq.topic"
_NOT_FOUND: Final = 404
Row = dict[str, Any]


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis tail`."""
    command = add_command(
        commands,
        "tail",
        tail,
        "print the messages that an exchange or MQTT topics get, while they are published",
        "EXCHANGE [KEY] | --mqtt FILTER  [--header NAME=VALUE]... [--count N] [--bytes N] "
        "[--hex | --json] [--vhost NAME] [--url URL] [--user NAME --password WORD]",
    )
    command.add_argument("exchange", metavar="EXCHANGE", nargs="?", help="exchange to follow")
    command.add_argument(
        "key", metavar="KEY", nargs="?", default="#", help="binding key, such as orders.# [#]"
    )
    command.add_argument(
        "--mqtt", metavar="FILTER", help="MQTT topic filter, such as a/+/b, instead of EXCHANGE KEY"
    )
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for a headers exchange: header that a message must have; may be repeated",
    )
    command.add_argument(
        "--count", type=number(int, 1), metavar="N", help="end after this number of messages"
    )
    command.add_argument(
        "--buffer",
        type=number(int, 1),
        default=1_000,
        metavar="N",
        help="largest number of messages that wait in the broker; if more come, the oldest are "
        "dropped [1000]",
    )
    command.add_argument(
        "--bytes",
        type=number(int, 0),
        default=1024,
        metavar="N",
        help="largest number of bytes of each body [1024]",
    )
    command.add_argument("--hex", action="store_true", help="print the bodies as hexadecimal bytes")
    command.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_vhost(command)
    add_login(command)


class TemporaryQueue:
    """A queue that is bound to the followed exchange, and deleted when the `with` block ends."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._client = ApiClient(arguments)
        self._vhost: str = arguments.vhost
        self._name = f"trellis.tail.{secrets.token_hex(6)}"
        self._limits = {
            "x-expires": EXPIRES_MS,
            "x-max-length": arguments.buffer,
            "x-max-length-bytes": BYTES_MAX,
        }
        self._truncate: int = arguments.bytes
        self._encoding = "base64" if arguments.hex else "auto"
        self._fetched = 0

    def __enter__(self) -> TemporaryQueue:
        body = {"durable": False, "arguments": self._limits}
        self._client.json("PUT", "queues", self._vhost, self._name, body=body)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._client.request("DELETE", "queues", self._vhost, self._name)
        except CommandError:
            pass  # The broker deletes the queue after EXPIRES_MS.

    def bind(self, exchange: str, key: str, headers: Row) -> None:
        """Bind the queue to an exchange by a binding key, and by headers if there are any.

        Raises CommandError.
        """
        body = {"routing_key": key, "arguments": headers}
        path = ("bindings", self._vhost, "e", exchange, "q", self._name)
        try:
            self._client.json("POST", *path, body=body)
        except ApiRefused as refusal:
            if refusal.status != _NOT_FOUND or "/" not in exchange:
                raise
            raise CommandError(f"{refusal}; for MQTT topics, use --mqtt '{exchange}'") from None

    def fetch(self, most: int) -> list[Row]:
        """Remove up to `most` messages from the queue, and return them. Raises CommandError."""
        body = {
            "count": most,
            "ackmode": "ack_requeue_false",
            "encoding": self._encoding,
            "truncate": self._truncate,
        }
        path = ("queues", self._vhost, self._name, "get")
        rows: list[Row] = self._client.json("POST", *path, body=body)
        self._fetched += len(rows)
        return rows

    def dropped(self) -> int:
        """Return how many messages the queue dropped because it was full. Raises CommandError."""
        row = self._client.json("GET", "queues", self._vhost, self._name)
        published: int = row.get("message_stats", {}).get("publish", 0)
        waiting: int = row["messages"]
        return published - self._fetched - waiting


def tail(arguments: argparse.Namespace) -> int:
    """Print the messages of an exchange or of MQTT topics while they are published.

    The command ends after --count messages, or when the user interrupts it.
    """
    exchange, key = _source(arguments)
    try:
        headers = dict(header_of(text) for text in arguments.header)
    except BrokerError as error:
        raise CommandError(f"--header: {error}", 2) from None
    with TemporaryQueue(arguments) as queue:
        queue.bind(exchange, key, headers)
        where = f"topic filter '{arguments.mqtt}'" if arguments.mqtt else f"exchange '{exchange}'"
        print(f"following {where}; end with Ctrl-C", file=sys.stderr, flush=True)
        try:
            for row in _messages(queue, arguments.count):
                _print(row, arguments)
        finally:
            _report(queue)
    return 0


def _source(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the exchange and the binding key to follow. Raises CommandError."""
    if arguments.mqtt is not None:
        if arguments.exchange is not None:
            raise CommandError(
                "EXCHANGE and --mqtt FILTER both choose the messages: give only one of them", 2
            )
        levels = swap(arguments.mqtt).split(".")
        return _TOPICS, ".".join("*" if level == "+" else level for level in levels)
    if arguments.exchange in (None, "", "amq.default"):
        raise CommandError(
            "give EXCHANGE or --mqtt FILTER; the default exchange cannot be followed: use "
            "`trellis peek QUEUE`",
            2,
        )
    return arguments.exchange, arguments.key


def _messages(queue: TemporaryQueue, count: int | None) -> Iterator[Row]:
    """Yield the messages of the temporary queue as they come; at most `count`, if given."""
    shown = 0
    while count is None or shown < count:
        rows = queue.fetch(FETCHED if count is None else min(FETCHED, count - shown))
        yield from rows
        shown += len(rows)
        if not rows:
            time.sleep(PAUSE)


def _print(row: Row, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(msgspec.json.encode(row).decode(), flush=True)
        return
    for line in message_lines(row, time.strftime("%H:%M:%S"), arguments.hex):
        print(line, flush=True)


def _report(queue: TemporaryQueue) -> None:
    """Print how many messages the temporary queue dropped, if any."""
    try:
        dropped = queue.dropped()
    except ApiRefused:
        return  # The broker has deleted the temporary queue already.
    if dropped > 0:
        text = f"{count_text(dropped, 'message')} came too fast and are not shown"
        print(f"{text}; --buffer raises the number of messages that may wait", file=sys.stderr)
