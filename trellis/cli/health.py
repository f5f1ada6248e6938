"""`trellis health`: says if a running broker is ready."""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request

from trellis.cli.api_client import base_url, error_text, fetch
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings


def add(commands: Commands) -> None:
    """Add the command health."""
    health_usage = "[--url URL] [--config FILE]... [FLAG VALUE]..."
    command = add_command(
        commands,
        "health",
        health,
        "exit with code 0 if the broker is ready, else with 1",
        health_usage,
    )
    command.add_argument(
        "--url",
        help="URL of the broker's metrics listener, such as http://127.0.0.1:15692 "
        "[metrics port of the settings]",
    )
    add_settings(command, "metrics")


def health(arguments: argparse.Namespace) -> int:
    """Print that the broker is ready. Raises CommandError, exit code 1, if the broker is not."""
    settings = load_settings(arguments).settings
    url = base_url(arguments.url, "metrics", settings.metrics) + "/readyz"
    try:
        fetch(urllib.request.Request(url))
    except urllib.error.HTTPError as error:
        answer = f"{error.code}: {error_text(error)}"
        raise CommandError(f"not ready: {url} answered {answer}") from None
    print(f"ready: {url}")
    return 0
