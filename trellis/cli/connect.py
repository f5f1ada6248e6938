"""`trellis connect`: copies messages between the broker, HTTP services and Kafka."""

from __future__ import annotations

import argparse
import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

from trellis import logs
from trellis.cli.actions import print_json
from trellis.cli.parsing import CommandError, Commands, add_command

_LEVELS = ("debug", "info", "warning", "error")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis connect`."""
    command = add_command(
        commands,
        "connect",
        connect,
        "deliver queues and streams to HTTP services and Kafka, and records of Kafka to exchanges",
        "FILE [--check [--json]] | --new-secret",
    )
    command.add_argument("file", nargs="?", type=Path, metavar="FILE", help="settings file")
    command.add_argument(
        "--check", action="store_true", help="check the settings file, print its links, and end"
    )
    command.add_argument(
        "--json", action="store_true", help="with --check: print the links as a JSON list"
    )
    command.add_argument(
        "--new-secret", action="store_true", help="print a new secret for a webhook, and end"
    )
    command.add_argument(
        "--log-level",
        choices=_LEVELS,
        default="info",
        metavar="|".join(_LEVELS),
        help="lowest level of log lines [info]",
    )


def connect(arguments: argparse.Namespace) -> int:
    """Run the links of the settings file until SIGTERM. Raises CommandError or SettingsError."""
    settings_module = _imported("settings")
    if arguments.new_secret:
        print(settings_module.new_secret())
        return 0
    if arguments.json and not arguments.check:
        raise CommandError("--json needs --check: `trellis connect FILE` alone prints no answer", 2)
    if arguments.file is None:
        raise CommandError("`trellis connect` needs a settings file: trellis connect FILE", 2)
    settings = settings_module.load(arguments.file)
    service = _imported("service")
    if arguments.check:
        links = [link.status for link in service.links_of(settings)]
        if arguments.json:
            print_json([{"kind": link.kind, "name": link.name} for link in links])
        else:
            for link in links:
                print(f"{link.kind} {link.name}")
        return 0
    logs.set_up(arguments.log_level)
    try:
        asyncio.run(service.serve(settings))
    except service.PortInUse as error:
        raise CommandError(str(error), 2) from None
    return 0


def _imported(name: str) -> Any:
    """Return a module of trellis.connect. Raises CommandError if the extra is not installed."""
    try:
        return import_module(f"trellis.connect.{name}")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"`trellis connect` needs {error.name}, which is not installed here: "
            "pip install 'trellis-broker[connect]'",
            2,
        ) from None
