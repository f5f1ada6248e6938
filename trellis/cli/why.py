"""`trellis why`: prints problems of a queue, a client or a topic, and the command to type next."""

from __future__ import annotations

import argparse
from typing import Any, Final

import msgspec

from trellis.cli.actions import add_action, add_group, add_vhost
from trellis.cli.api_client import ApiClient, add_publisher
from trellis.cli.parsing import Commands, Parser, number
from trellis.cli.readable import time_text
from trellis.monitoring.verdict_texts import CONDITION
from trellis.settings.errors import printable

#: Exit code if a problem was found: 1, as in `trellis health`.
FOUND: Final = 1
_EXIT_CODE: Final = (
    "The exit code is 0 if no problem was found. The exit code is 1 if a problem was found, or if "
    "the broker cannot answer."
)


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis why`."""
    group = add_group(
        commands,
        "why",
        "show why a queue grows or stands still, why a client is refused or slow, or why messages "
        "of a topic do not arrive; each answer names the next command",
        _EXIT_CODE,
    )
    queue = _action(
        group, "queue", why_queue, "show what is wrong with a queue", "NAME [--seconds SECONDS]"
    )
    queue.add_argument("name", metavar="NAME", help="name of the queue")
    add_vhost(queue)
    queue.add_argument(
        "--seconds",
        type=number(float, 0),
        default=1.0,
        metavar="SECONDS",
        help="seconds between two counts of the queue, which show if it grows; at most 10 [1]",
    )
    client = _action(group, "client", why_client, "show what is wrong with a client", "NAME")
    client.add_argument(
        "name",
        metavar="NAME",
        help="MQTT client identifier, name of an AMQP connection, address, or user",
    )
    topic = _action(
        group,
        "topic",
        why_topic,
        "show why messages of an MQTT topic do not arrive",
        "TOPIC [--publisher USER]",
    )
    topic.add_argument("topic", metavar="TOPIC", help="MQTT topic, without wildcards")
    add_publisher(topic)
    add_vhost(topic)


def _action(group: Commands, name: str, run: Any, text: str, usage: str) -> Parser:
    flags = f"{usage} [--vhost NAME] [--json]" if name != "client" else f"{usage} [--json]"
    action = add_action(group, "why", name, run, text, flags, _EXIT_CODE)
    action.add_argument("--json", action="store_true", help="print the answer as JSON")
    return action


def why_queue(arguments: argparse.Namespace) -> int:
    """Print the problems of a queue; return the exit code 1 (FOUND) if there are any."""
    path = ("why", "queues", arguments.vhost, arguments.name)
    answer = _ask(arguments, path, {"seconds": arguments.seconds})
    queue = answer["queue"]
    head = (
        f"{queue['type']} queue '{queue['name']}' in vhost '{queue['vhost']}': "
        f"{queue['messages_ready']:,} ready, {queue['messages_unacknowledged']:,} unacknowledged, "
        f"consumers: {queue['consumers']:,}"
    )
    if queue["head_age_ms"] is not None:
        head += f"; the first message has waited for {time_text(queue['head_age_ms'] / 1000)}"
    return _show(arguments, answer, head)


def why_client(arguments: argparse.Namespace) -> int:
    """Print the problems of a client; return the exit code 1 (FOUND) if there are any."""
    answer = _ask(arguments, ("why", "clients", arguments.name), {})
    client = answer["client"]
    head = (
        f"client '{client['name']}': open connections: {client['connections']:,}, MQTT sessions: "
        f"{client['sessions']:,}"
    )
    return _show(arguments, answer, head)


def why_topic(arguments: argparse.Namespace) -> int:
    """Print why messages of a topic do not arrive.

    Return the exit code 1 (FOUND) if a reason was found.
    """
    query = {} if arguments.publisher is None else {"user": arguments.publisher}
    path = ("why", "topics", arguments.vhost, arguments.topic)
    answer = _ask(arguments, path, query)
    reached = f"that would get the message {CONDITION}" if answer["refusal"] else "reached"
    head = (
        f"topic '{arguments.topic}' in vhost '{arguments.vhost}': queues and sessions {reached}: "
        f"{answer['reached']:,}"
    )
    return _show(arguments, answer, head)


def _ask(
    arguments: argparse.Namespace, path: tuple[str, ...], query: dict[str, object]
) -> dict[str, Any]:
    """Return the decoded answer to `GET /api/PATH` with a query. Raises CommandError."""
    client = ApiClient(arguments)
    data = client.request("GET", *path, query=query)
    answer: dict[str, Any] = client.decode(data, dict[str, Any], "answer", *path)
    return answer


def _show(arguments: argparse.Namespace, answer: dict[str, Any], head: str) -> int:
    """Print the line `head` and the findings of an answer, or with --json the answer as JSON.

    Return the exit code 1 (FOUND) if there is a finding.
    """
    findings = answer["findings"]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return FOUND if findings else 0
    print(printable(head))
    for finding in findings:
        print(printable(f"- {finding['text']}"))
        print(printable(f"  next: {finding['next']}"))
    if not findings:
        print(f"no problem found\n  next: {printable(answer['next'])}")
    return FOUND if findings else 0
