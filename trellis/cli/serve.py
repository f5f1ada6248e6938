"""`trellis serve`: run the broker."""

import argparse

from trellis.cli.parsing import Commands, add_command, add_settings, load_settings


def add(commands: Commands) -> None:
    usage = "[--config FILE]... [FLAG VALUE]..."
    add_settings(
        add_command(commands, "serve", serve, "run the broker until SIGTERM or SIGINT", usage)
    )


def serve(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments).settings
    from trellis.app import (
        run,
    )  # the loop and both protocols: the other commands start faster without them

    return run(settings, lambda: load_settings(arguments).settings)
