"""`trellis health`: says if a running broker is ready, or a standby of a cluster."""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request

from trellis.cli.actions import add_result, print_result
from trellis.cli.api_client import address_keys, base_url, error_text, fetch
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings
from trellis.cli.wrong_port import port_hint
from trellis.node_state import standby_state


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis health`."""
    health_usage = "[--active] [--json] [--url URL] [--config FILE]... [FLAG VALUE]..."
    command = add_command(
        commands,
        "health",
        health,
        "exit with code 0 if the broker is ready or is a standby of its cluster, else with code 1",
        health_usage,
    )
    command.add_argument(
        "--url",
        help="URL of the broker's metrics listener, such as http://127.0.0.1:15692 "
        "[metrics port of the settings]",
    )
    command.add_argument(
        "--active",
        action="store_true",
        help="exit with code 1 on a standby: only the active node of a cluster is ready",
    )
    add_result(command)
    add_settings(command, only=address_keys("metrics"))


def health(arguments: argparse.Namespace) -> int:
    """Print that the broker is ready, or that it is a standby.

    Raises CommandError, exit code 1, if the broker is neither.
    """
    settings = load_settings(arguments).settings
    url = base_url(arguments.url, "metrics", settings.metrics) + "/readyz"
    try:
        fetch(urllib.request.Request(url), section="metrics")
    except urllib.error.HTTPError as error:
        text = error_text(error)
        state = standby_state(text)
        if error.code == 404:
            raise CommandError(
                f"{url} answered 404: this port serves no health checks; {port_hint('metrics')}"
            ) from None
        if not state or arguments.active:
            raise CommandError(f"not ready: {url} answered {error.code}: {text}") from None
        line = f"standby: this node is {state}, and another node serves the clients: {url}"
        print_result(arguments, line, state=state, ready=False, url=url)
        return 0
    print_result(arguments, f"ready: {url}", state="ready", ready=True, url=url)
    return 0
