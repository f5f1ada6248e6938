"""`trellis purge`, `pause`, `resume` and `close`: act on one queue or on connections."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from trellis.cli.actions import add_result, add_vhost, print_json, print_result
from trellis.cli.api_client import ApiClient, ApiRefused, add_login
from trellis.cli.confirming import add_yes, arriving_text, confirm
from trellis.cli.parsing import CommandError, Commands, Parser, add_command
from trellis.cli.readable import count_text
from trellis.diagnosis.findings import command as command_line
from trellis.diagnosis.findings import in_vhost, waiting
from trellis.settings.errors import printable

Row = dict[str, Any]


def add(commands: Commands) -> None:
    """Add the parsers of the commands purge, pause, resume and close."""
    usage = "QUEUE [--vhost NAME] [--url URL] [--user NAME --password WORD]"
    for name, run, text in (
        ("purge", purge, "discard the waiting messages of a queue"),
        (
            "pause",
            pause_queue,
            "stop the deliveries of a queue until it is resumed or the broker stops",
        ),
        ("resume", resume_queue, "let a paused queue deliver again"),
    ):
        asks = name != "resume"
        words = usage.replace(" [--vhost", " [--yes] [--vhost", 1) if asks else usage
        command = add_command(commands, name, run, text, words)
        command.add_argument("queue", metavar="QUEUE", help="name of the queue")
        _add_common(command, asks)
        add_vhost(command)
        add_login(command)
    command = add_command(
        commands,
        "close",
        close,
        "close the connections of a client",
        "CLIENT|CONNECTION [--yes] [--url URL] [--user NAME --password WORD]",
    )
    command.add_argument(
        "name",
        metavar="CLIENT|CONNECTION",
        help="MQTT client identifier, connection name that an AMQP client has set, or name of a "
        "connection, such as '127.0.0.1:40218 -> amqp'",
    )
    _add_common(command, True)
    add_login(command)


def _add_common(command: Parser, asks: bool) -> None:
    if asks:
        add_yes(command)
    add_result(command)


def _queue(client: ApiClient, arguments: argparse.Namespace) -> Row:
    row: Row = client.json("GET", "queues", arguments.vhost, arguments.queue)
    return row


def purge(arguments: argparse.Namespace) -> int:
    """Discard the waiting messages of a queue, after a confirmation."""
    client = ApiClient(arguments)
    row = _queue(client, arguments)
    if row["type"] == "stream":
        raise CommandError(
            f"queue '{arguments.queue}' is a stream, which cannot be purged: retention removes old "
            "rows; set it with `trellis policies set`, key max-age or max-length-bytes"
        )
    ready = row["messages_ready"]
    fields = {"vhost": arguments.vhost, "queue": arguments.queue, "messages": ready}
    if not ready:
        text = f"queue '{arguments.queue}' has no waiting message"
        print_result(arguments, text, **fields, changed=False)
        return 0
    confirm(arguments, _purge_lines(row))
    client.request("DELETE", "queues", arguments.vhost, arguments.queue, "contents")
    print_result(arguments, f"purged queue '{arguments.queue}'", **fields, changed=True)
    return 0


def _purge_lines(row: Row) -> Iterator[str]:
    ready, held = row["messages_ready"], row["messages_unacknowledged"]
    yield f"{count_text(ready, 'message')} in queue '{row['name']}' will be discarded"
    if held:
        yield f"{count_text(held, 'unacknowledged message')} will stay in queue '{row['name']}'"


def pause_queue(arguments: argparse.Namespace) -> int:
    """Pause the deliveries of a queue, after a confirmation."""
    client = ApiClient(arguments)
    row = _queue(client, arguments)
    fields = {"vhost": arguments.vhost, "queue": arguments.queue, "paused": True}
    if row["paused"]:
        text = f"queue '{arguments.queue}' is paused already"
        print_result(arguments, text, **fields, changed=False)
        return 0
    confirm(arguments, _pause_lines(client, row))
    client.request("PUT", "queues", arguments.vhost, arguments.queue, "pause")
    resume = command_line("resume", arguments.queue, *in_vhost(arguments.vhost))
    text = f"paused queue '{arguments.queue}'; to resume its deliveries: {resume}"
    print_result(arguments, text, **fields, changed=True)
    return 0


def _pause_lines(client: ApiClient, row: Row) -> Iterator[str]:
    consumers = count_text(row["consumers"], "consumer")
    yield f"queue '{row['name']}' will stop delivering messages to {consumers}"
    coming = arriving_text(client, "queues", row["vhost"], row["name"])
    yield waiting(row["messages_ready"]) + (f", and {coming}" if coming else "")


def resume_queue(arguments: argparse.Namespace) -> int:
    """Resume the deliveries of a paused queue."""
    client = ApiClient(arguments)
    fields = {"vhost": arguments.vhost, "queue": arguments.queue, "paused": False}
    if not _queue(client, arguments)["paused"]:
        text = f"queue '{arguments.queue}' is not paused"
        print_result(arguments, text, **fields, changed=False)
        return 0
    client.request("DELETE", "queues", arguments.vhost, arguments.queue, "pause")
    print_result(arguments, f"resumed queue '{arguments.queue}'", **fields, changed=True)
    return 0


def close(arguments: argparse.Namespace) -> int:
    """Close the connections that the argument names, after a confirmation."""
    client = ApiClient(arguments)
    rows = [row for row in client.json("GET", "connections") if _is_named(row, arguments.name)]
    if not rows:
        raise ApiRefused(
            f"no client '{arguments.name}' is connected: no open connection has this name or MQTT "
            "client identifier",
            404,
            client,
        )
    confirm(arguments, [_close_line(client, row) for row in rows])
    for row in rows:
        client.request("DELETE", "connections", row["name"])
        if not arguments.json:
            print(printable(f"closed connection {row['name']}"))
    if arguments.json:
        print_json({"connections": [row["name"] for row in rows], "changed": True})
    return 0


def _is_named(row: Row, name: str) -> bool:
    return name in (
        row["name"],
        row.get("user_provided_name"),
        row.get("variable_map", {}).get("client_id"),
    )


def _close_line(client: ApiClient, row: Row) -> str:
    """Return the line with the consequences of closing a connection."""
    line = f"connection {row['name']} of user '{row['user']}' ({row['protocol']}) will be closed"
    identifier = row.get("variable_map", {}).get("client_id")
    if identifier is not None:
        return (
            f"{line}: the broker will publish the will message of MQTT client '{identifier}', if "
            "the client has set one; the client may connect again"
        )
    channels = client.json("GET", "connections", row["name"], "channels")
    consumers = sum(one["consumer_count"] for one in channels)
    held = sum(one["messages_unacknowledged"] for one in channels)
    return (
        f"{line}: {count_text(consumers, 'consumer')} will end, and "
        f"{count_text(held, 'unacknowledged message')} will return to their queues"
    )
