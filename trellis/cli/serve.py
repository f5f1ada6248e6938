"""`trellis serve`: run the broker."""

import argparse
import os

from trellis.cli.parsing import Commands, add_command, add_settings, load_settings
from trellis.settings.loading import config_files


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis serve`."""
    usage = "[--adopt] [--config FILE]... [FLAG VALUE]..."
    command = add_command(commands, "serve", serve, "run the broker until SIGTERM or SIGINT", usage)
    command.add_argument(
        "--adopt",
        action="store_true",
        help="run without a cluster on a data directory that belongs to a node of a cluster; the "
        "directory cannot return to the cluster",
    )
    add_settings(command)


def serve(arguments: argparse.Namespace) -> int:
    """Run the broker until SIGTERM or SIGINT."""
    loaded = load_settings(arguments)
    files = [str(file) for file in config_files(arguments.config, os.environ)]
    # Imported here, so that the other commands start without the event loop and both protocols.
    from trellis.app import run

    return run(
        loaded.settings,
        lambda: load_settings(arguments),
        files=files,
        sources=loaded.sources,
        adopt=arguments.adopt,
    )
