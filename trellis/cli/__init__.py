"""The command `trellis`: finds the command meant, runs it, and tells what went wrong in one line.

    parsing.py   how arguments are read: one-line errors, the flags of the settings
    serve.py     serve
    config.py    config, check-config, hash-password
    client.py    health, list: they ask a running broker     table.py   rows for people
    definitions.py   definitions                     asking.py  one question to the HTTP API
    people.py    users, permissions                  places.py  vhosts, policies
    store.py     store                               version.py   version
    stream.py    stream, replay
    bench.py     bench load                          pipeline.py   pipeline: its work is done elsewhere

A module with commands has `add(commands)`, which adds their parsers; a command is a function from
its arguments to an exit code. Exit codes: 0 done, 1 it did not work, 2 wrong arguments or
configuration.
"""

import os
import sys
from collections.abc import Sequence

from trellis.cli import (
    bench,
    client,
    config,
    definitions,
    matching,
    pipeline,
    serve,
    store,
    stream,
    version,
)
from trellis.cli import users as people
from trellis.cli import vhosts_policies as places
from trellis.cli.parsing import CommandError, Parser
from trellis.settings import SettingsError

USAGE, INTERRUPTED = 2, 130


def parser() -> Parser:
    """The parser of the whole command line."""
    root = Parser(
        prog="trellis",
        usage="trellis COMMAND [ARGUMENT]...",
        description="Trellis, a message broker for AMQP 0-9-1 and MQTT.",
    )
    root.add_argument("--version", action="version", version=version.line())
    commands = root.add_subparsers(
        title="commands", metavar="COMMAND [ARGUMENT]...", dest="command"
    )
    for module in (
        serve,
        config,
        client,
        people,
        places,
        definitions,
        store,
        stream,
        matching,
        bench,
        pipeline,
        version,
    ):
        module.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (else sys.argv) and return its exit code."""
    root = parser()
    try:
        try:
            arguments = root.parse(argv)
        except SystemExit as end:  # argparse has printed --help or --version
            return int(end.code or 0)
        if arguments.command is None:
            root.print_help()
            return USAGE
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except (CommandError, SettingsError) as error:
        print(f"trellis: {error}", file=sys.stderr)
        return error.code if isinstance(error, CommandError) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone; Python would complain once more when
        # it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
