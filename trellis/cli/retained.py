"""`trellis retained`: the retained messages of MQTT topics of a running broker."""

from __future__ import annotations

import argparse
from typing import Any

from trellis.cli.actions import (
    add_action,
    add_group,
    add_json,
    add_result,
    add_vhost,
    print_json,
    print_result,
)
from trellis.cli.api_client import ApiClient
from trellis.cli.confirming import add_yes, confirm
from trellis.cli.parsing import Commands, number
from trellis.cli.peek import body_of
from trellis.cli.readable import count_text, size_text, time_text
from trellis.cli.table import Row, table

#: Characters of a body in the table.
_SHOWN = 40


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis retained`."""
    group = add_group(commands, "retained", "list and remove retained messages of MQTT topics")
    usage = "[FILTER] [--count N] [--json] [--vhost NAME]"
    command = add_action(group, "retained", "list", list_retained, "list retained messages", usage)
    command.add_argument(
        "filter", metavar="FILTER", nargs="?", default="#", help="MQTT topic filter [#]"
    )
    command.add_argument(
        "--count",
        type=number(int, 1),
        default=1_000,
        metavar="N",
        help="largest number of messages [1000]",
    )
    add_json(command)
    add_vhost(command)
    command = add_action(
        group,
        "retained",
        "clear",
        clear,
        "remove retained messages; subscribers that received them get no notice",
        "FILTER [--yes] [--vhost NAME]",
    )
    command.add_argument("filter", metavar="FILTER", help="MQTT topic filter; # for all topics")
    add_yes(command)
    add_result(command)
    add_vhost(command)


def list_retained(arguments: argparse.Namespace) -> int:
    """Print the retained messages whose topics match the filter."""
    client = ApiClient(arguments)
    path = ("retained", arguments.vhost)
    query = {"filter": arguments.filter, "count": arguments.count}
    rows: list[dict[str, Any]] = client.decode(
        client.request("GET", *path, query=query), list[dict[str, Any]], "list of messages", *path
    )
    if arguments.json:
        print_json(rows)
        return 0
    shown = [_cells(row) for row in rows]
    nothing = f"no retained message has a topic that matches '{arguments.filter}'"
    print(table(shown, list(shown[0])) if shown else nothing)
    if len(rows) == arguments.count:
        answer = client.request("GET", *path, "count", query={"filter": arguments.filter})
        all_: dict[str, Any] = client.decode(answer, dict[str, Any], "count", *path, "count")
        if all_["topics"] > len(rows):
            total = f"{'more than ' if all_['more'] else ''}{all_['topics']:,}"
            print(
                f"the first {len(rows):,} of {total} retained messages are shown; "
                "--count N shows more"
            )
    return 0


def _cells(row: dict[str, Any]) -> Row:
    body = body_of(row)[:_SHOWN].decode("utf-8", "backslashreplace")
    left = row["expires_in_ms"]
    return {
        "topic": row["topic"],
        "qos": row["qos"],
        "size": size_text(row["payload_bytes"]),
        "expires": "" if left is None else f"in {time_text(left / 1000)}",
        "payload": body + ("..." if row["payload_bytes"] > _SHOWN else ""),
    }


def clear(arguments: argparse.Namespace) -> int:
    """Remove the retained messages whose topics match the filter, after a confirmation."""
    client = ApiClient(arguments)
    path = ("retained", arguments.vhost)
    survey = _delete(client, *path, filter=arguments.filter, dry_run="true")
    fields = {"vhost": arguments.vhost, "filter": arguments.filter}
    if not survey["removed"]:
        text = f"no retained message has a topic that matches '{arguments.filter}'"
        print_result(arguments, text, **fields, **survey, changed=False)
        return 0
    lines = [f"{count_text(survey['removed'], 'retained message')} will be removed"]
    if survey["refused"]:
        lines.append(
            f"{count_text(survey['refused'], 'retained message')} will stay, because user "
            f"'{client.user}' may not publish to their topics"
        )
    confirm(arguments, lines)
    result = _delete(client, *path, filter=arguments.filter)
    text = f"removed {count_text(result['removed'], 'retained message')}"
    print_result(arguments, text, **fields, **result, changed=True)
    return 0


def _delete(client: ApiClient, *path: str, **query: str) -> dict[str, Any]:
    answer = client.request("DELETE", *path, query=query)
    row: dict[str, Any] = client.decode(answer, dict[str, Any], "counts", *path)
    return row
