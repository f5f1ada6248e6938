"""`trellis peek`: prints the waiting messages of a queue; the queue keeps them unchanged."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from trellis.cli.actions import add_vhost
from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.parsing import Commands, add_command, number
from trellis.cli.readable import count_text, size_text, time_text
from trellis.settings.errors import printable

_WIDTH: Final = 16
Row = dict[str, Any]


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis peek`."""
    command = add_command(
        commands,
        "peek",
        peek,
        "print the first waiting messages of a queue; the queue keeps them unchanged",
        "QUEUE [--count N] [--after SEQUENCE] [--bytes N] [--hex | --json] [--vhost NAME] "
        "[--url URL] [--user NAME --password WORD]",
    )
    command.add_argument(
        "queue", metavar="QUEUE", help="name of the queue, or of the queue of an MQTT session"
    )
    command.add_argument(
        "--count",
        type=number(int, 1),
        default=10,
        metavar="N",
        help="largest number of messages [10]",
    )
    command.add_argument(
        "--after",
        default="",
        metavar="SEQUENCE",
        help="begin after the message with this sequence number, which an earlier peek has shown",
    )
    command.add_argument(
        "--bytes",
        type=number(int, 0),
        default=1024,
        metavar="N",
        help="largest number of bytes of each body [1024]",
    )
    command.add_argument("--hex", action="store_true", help="print the bodies as hexadecimal bytes")
    command.add_argument("--json", action="store_true", help="print a JSON list of messages")
    add_vhost(command)
    add_login(command)


def peek(arguments: argparse.Namespace) -> int:
    """Print waiting messages of the queue that the arguments name. Raises CommandError."""
    rows = read_messages(ApiClient(arguments), arguments)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return 0
    for place, row in enumerate(rows, 1):
        for line in message_lines(row, f"{place}  sequence {row['sequence']}", arguments.hex):
            print(line)
    if not rows:
        after = f" after the sequence number {arguments.after}" if arguments.after else ""
        print(printable(f"no message waits in queue '{arguments.queue}'{after}"))
    elif len(rows) == arguments.count:
        print(f"to print the next messages, give --after {rows[-1]['sequence']}")
    return 0


def read_messages(client: ApiClient, arguments: argparse.Namespace) -> list[Row]:
    """Fetch waiting messages of a queue; return them as the HTTP API describes them.

    Raises CommandError.
    """
    path = ("queues", arguments.vhost, arguments.queue, "messages")
    query = {
        "count": arguments.count,
        "after": arguments.after,
        "truncate": arguments.bytes,
        "encoding": "base64" if arguments.hex else "auto",
    }
    answer = client.request("GET", *path, query=query)
    rows: list[Row] = client.decode(answer, list[Row], "list of messages", *path)
    return rows


def message_lines(row: Row, title: str, in_hex: bool = False) -> Iterator[str]:
    """Yield the lines that describe a message: its head, properties and body.

    `title` is the beginning of the first line. With `in_hex`, the body is shown as hexadecimal
    bytes.
    """
    yield printable(f"{title}, {_head(row)}")
    yield printable(f"   exchange '{row['exchange']}', routing key '{row['routing_key']}'")
    for name, value in row["properties"].items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield printable(f"   {name}: {text}")
    payload = body_of(row)
    for line in _body_lines(payload, in_hex):
        yield f"   {line}"
    if row["payload_bytes"] > len(payload):
        yield f"   ... {size_text(row['payload_bytes'] - len(payload))} more"


def _head(row: Row) -> str:
    parts = [size_text(row["payload_bytes"])]
    if row.get("returns"):
        parts.append(f"redelivered (returned {count_text(row['returns'], 'time')})")
    elif row["redelivered"]:
        parts.append("redelivered")
    if row.get("persistent") is False:
        parts.append("not on disk")
    left = row.get("expires_in_ms")
    if left is not None:
        parts.append(f"expires in {time_text(left / 1000)}" if left > 0 else "expired")
    return ", ".join(parts)


def body_of(row: Row) -> bytes:
    """Return the body of a message as bytes.

    If `row`, the broker's answer, has only the beginning of a long body, return this beginning.
    """
    payload: str = row["payload"]
    return base64.b64decode(payload) if row["payload_encoding"] == "base64" else payload.encode()


def _body_lines(payload: bytes, in_hex: bool) -> Iterator[str]:
    """Yield a body as text, or as hexadecimal bytes if `in_hex` is True or the body is not text."""
    text = None if in_hex else _text(payload)
    if text is not None:
        yield from (printable(line) for line in text.splitlines())
        return
    for at in range(0, len(payload), _WIDTH):
        part = payload[at : at + _WIDTH]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{at:08x}  {part.hex(' '):<{3 * _WIDTH - 1}}  {shown}"


def _text(payload: bytes) -> str | None:
    """Return a body as text; None if it is not text.

    A body whose last character is cut off counts as text; the result is without this character.
    """
    for end in (len(payload), *range(len(payload) - 1, max(0, len(payload) - 4), -1)):
        try:
            text = payload[:end].decode()
        except UnicodeDecodeError:
            continue
        return text if all(one.isprintable() or one in "\t\r\n" for one in text) else None
    return None
