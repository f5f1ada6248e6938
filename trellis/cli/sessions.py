"""`trellis sessions`: end MQTT sessions of a running broker."""

from __future__ import annotations

import argparse

from trellis.cli.actions import add_action, add_group, add_vhost, ask
from trellis.cli.parsing import Commands


def add(commands: Commands) -> None:
    """Add the command sessions."""
    group = add_group(
        commands, "sessions", "end MQTT sessions of a running broker (`trellis list sessions`)"
    )
    command = add_action(
        group,
        "sessions",
        "delete",
        delete,
        "end the session of a client identifier, drop its messages, disconnect the client, and "
        "free the identifier for other users",
        "CLIENT_ID [--vhost NAME]",
    )
    command.add_argument("client_id", metavar="CLIENT_ID", help="MQTT client identifier")
    add_vhost(command)


def delete(arguments: argparse.Namespace) -> int:
    """End the session of a client identifier. Raises CommandError if the session does not exist."""
    ask(arguments, "DELETE", "trellis", "sessions", arguments.vhost, arguments.client_id)
    return 0
