"""`trellis sessions`: end MQTT sessions of a running broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from trellis.cli.actions import add_action, add_group, add_result, add_vhost, print_result
from trellis.cli.api_client import ApiClient
from trellis.cli.confirming import add_yes, arriving_text, confirm
from trellis.cli.consequences import deletion_lines
from trellis.cli.parsing import Commands
from trellis.cli.readable import count_text


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis sessions`."""
    group = add_group(
        commands,
        "sessions",
        "end MQTT sessions of a running broker (to list them: `trellis list sessions`)",
    )
    command = add_action(
        group,
        "sessions",
        "delete",
        delete,
        "end the session of a client identifier, drop its messages, disconnect the client, and "
        "free the identifier for other users",
        "CLIENT_ID [--yes] [--vhost NAME]",
    )
    command.add_argument("client_id", metavar="CLIENT_ID", help="MQTT client identifier")
    add_yes(command)
    add_result(command)
    add_vhost(command)


def delete(arguments: argparse.Namespace) -> int:
    """End the session of a client identifier, after a confirmation.

    Raises CommandError if the session does not exist.
    """
    client = ApiClient(arguments)
    for row in client.json("GET", "trellis", "sessions"):
        if (row["client_id"], row["vhost"]) == (arguments.client_id, arguments.vhost):
            confirm(arguments, _consequences(client, row))
    client.request("DELETE", "trellis", "sessions", arguments.vhost, arguments.client_id)
    fields = {"vhost": arguments.vhost, "client_id": arguments.client_id}
    print_result(arguments, f"ended session '{arguments.client_id}'", **fields, changed=True)
    return 0


def _consequences(client: ApiClient, row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that tell the user the consequences of deleting a session."""
    present = "its client will be disconnected, " if row["connected"] else ""
    yield (
        f"session '{row['client_id']}' will end: {present}"
        f"{count_text(row['subscriptions'], 'subscription')} will end, and "
        f"{count_text(row['queued'] + row['in_flight'], 'message')} will be discarded"
    )
    if row["inbox"]:
        coming = arriving_text(client, "queues", row["vhost"], row["inbox"])
        if coming:
            yield f"{coming} for the session, and will no longer reach its client"
    if row["subscriptions"]:
        yield from deletion_lines(client, row["vhost"], "session", row["client_id"])
