"""`trellis publish`: publishes one message, and prints how many queues it reached."""

from __future__ import annotations

import argparse
import base64
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.errors import BrokerError
from matching.grammar import swap
from protocols.amqp.codec.properties import LAYOUT
from protocols.crossing import QOS, RETAIN
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.packets import MalformedPacket
from trellis.cli.actions import add_vhost
from trellis.cli.api_client import ApiClient, ApiRefused, add_login
from trellis.cli.parsing import CommandError, Commands, add_command
from trellis.diagnosis.findings import command as command_line
from trellis.diagnosis.findings import in_vhost
from trellis.monitoring.route_question import header_of
from trellis.settings.errors import printable

#: The end of the errors about too many words: the user may have given the body as a word.
_BODY_HINT: Final = "; the body is --body TEXT, --file FILE or the standard input"
#: Properties whose values are whole numbers.
_NUMBERS: Final = ("priority", "timestamp", "delivery_mode")
_TOO_LARGE: Final = 413


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis publish`."""
    command = add_command(
        commands,
        "publish",
        publish,
        "publish one message and print how many queues and sessions it reached; the exit code is 1 "
        "if the message reached none and is not retained",
        "EXCHANGE KEY | --mqtt TOPIC  [--body TEXT | --file FILE] [--header NAME=VALUE]... "
        "[--property NAME=VALUE]... [--persistent] [--json] [--vhost NAME] [--url URL] "
        "[--user NAME --password WORD]",
    )
    command.hint = _BODY_HINT
    command.add_argument(
        "exchange",
        metavar="EXCHANGE",
        nargs="?",
        help="exchange to publish to; amq.default is the default exchange",
    )
    command.add_argument("key", metavar="KEY", nargs="?", help="routing key")
    command.add_argument(
        "--mqtt", metavar="TOPIC", help="publish to this MQTT topic, instead of EXCHANGE and KEY"
    )
    command.add_argument("--body", metavar="TEXT", help="body of the message")
    command.add_argument(
        "--file", metavar="FILE", help="file with the body, - for the standard input [-]"
    )
    for name, text in (
        ("header", "header of the message; a VALUE that is JSON, such as 3, has JSON's type"),
        ("property", "property of the message, such as content_type or expiration (ms)"),
    ):
        command.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"{text}; may be repeated",
        )
    command.add_argument(
        "--persistent", action="store_true", help="durable queues keep the message on disk"
    )
    command.add_argument(
        "--retain",
        action="store_true",
        help="only with --mqtt: the message becomes the retained message of its topic",
    )
    command.add_argument(
        "--qos", type=int, choices=(0, 1, 2), help="only with --mqtt: quality of service"
    )
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    add_vhost(command)
    add_login(command)


def publish(arguments: argparse.Namespace) -> int:
    """Publish the message that the arguments describe.

    Return 1 if the message reached no queue and no session, and is not retained.
    """
    exchange, key = _address(arguments)
    client = ApiClient(arguments)
    payload = _body(arguments)
    body = {
        "routing_key": key,
        "properties": _properties(arguments),
        "payload": base64.b64encode(payload).decode(),
        "payload_encoding": "base64",
    }
    path = ("exchanges", arguments.vhost, exchange or "amq.default", "publish")
    try:
        answer = client.json("POST", *path, body=body)
    except ApiRefused as refusal:
        if refusal.status != _TOO_LARGE:
            raise
        raise CommandError(
            "the message is too large for the HTTP API, which accepts about 48 KiB: publish it "
            "with an AMQP or MQTT client"
        ) from None
    reached = answer.get("queues", 0)
    if arguments.json:
        print(msgspec.json.encode({"queues": reached}).decode())
    else:
        places = "queue or session" if reached == 1 else "queues and sessions"
        print(f"the message reached {reached:,} {places}{_retained_text(arguments, payload)}")
    done = bool(reached or arguments.retain)
    if not done:
        mqtt = arguments.mqtt
        where = ["--mqtt", mqtt] if mqtt is not None else [exchange or "amq.default", key]
        why = printable(command_line("route", *where, *in_vhost(arguments.vhost)))
        print(f"no queue and no session got the message; to see why: {why}", file=sys.stderr)
    return 0 if done else 1


def _retained_text(arguments: argparse.Namespace, payload: bytes) -> str:
    """Return a phrase for the end of the printed result: the effect of --retain on the topic.

    Return "" without --retain.
    """
    if not arguments.retain:
        return ""
    if not payload:
        return "; the topic has no retained message now"
    return "; later subscribers of the topic get the message, too"


def _address(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the exchange and the routing key to publish to. Raises CommandError."""
    if arguments.mqtt is not None:
        if arguments.exchange is not None:
            raise CommandError(f"give either EXCHANGE and KEY, or --mqtt TOPIC{_BODY_HINT}", 2)
        return _address_of_topic(arguments.mqtt)
    if arguments.retain or arguments.qos is not None:
        raise CommandError("--retain and --qos need --mqtt TOPIC", 2)
    if arguments.exchange is None or arguments.key is None:
        raise CommandError("give EXCHANGE and KEY, or --mqtt TOPIC", 2)
    exchange: str = arguments.exchange
    return "" if exchange == "amq.default" else exchange, arguments.key


def _address_of_topic(topic: str) -> tuple[str, str]:
    """Return the exchange and the routing key of a topic to which MQTT clients can publish.

    Raises CommandError.
    """
    # This import loads the core, which is not needed without --mqtt.
    from protocols.mqtt.codec.topics import EXCHANGE, RESERVED

    try:
        topic_name(topic)
    except MalformedPacket as error:
        raise CommandError(f"--mqtt: topic '{topic}' is not valid: {error}", 2) from None
    if topic.split("/", 1)[0] in RESERVED:
        raise CommandError(f"--mqtt: topic '{topic}' is reserved: no client can publish to it", 2)
    return EXCHANGE, swap(topic)


def _properties(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the message properties that the arguments give, as JSON for the HTTP API.

    Raises CommandError.
    """
    properties = dict(_property(text) for text in arguments.property)
    try:
        headers = dict(header_of(text) for text in arguments.header)
    except BrokerError as error:
        raise CommandError(f"--header: {error}", 2) from None
    if arguments.retain:
        headers[RETAIN] = True
    if arguments.qos is not None:
        headers[QOS] = arguments.qos
    if headers:
        properties["headers"] = headers
    if arguments.persistent:
        properties["delivery_mode"] = 2
    return properties


def _property(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    known = [property_name for property_name, _ in LAYOUT if property_name != "headers"]
    if not equals or name not in known:
        raise CommandError(
            f"--property: '{text}' must be NAME=VALUE, with NAME one of {', '.join(known)}", 2
        )
    if name not in _NUMBERS:
        return name, value
    if not value.isdecimal():
        raise CommandError(f"--property: {name} must be a whole number, got '{value}'", 2)
    return name, int(value)


def _body(arguments: argparse.Namespace) -> bytes:
    """Return the message body that the arguments give, or that stdin holds. Raises CommandError."""
    if arguments.body is not None:
        if arguments.file is not None:
            raise CommandError("--body and --file both give the body: give only one of them", 2)
        text: str = arguments.body
        return text.encode(errors="surrogateescape")
    if arguments.file in (None, "-"):
        if sys.stdin.isatty():
            raise CommandError("give the body: --body TEXT, --file FILE, or the standard input", 2)
        return sys.stdin.buffer.read()
    try:
        return Path(arguments.file).read_bytes()
    except OSError as error:
        raise CommandError(f"--file: cannot read {arguments.file}: {error.strerror}", 2) from None
