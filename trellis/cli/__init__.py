"""The command `trellis`.

    parsing.py           arguments: one-line errors, the flags of the settings
    table.py             rows as a table
    api_client.py        HTTP requests to a running broker, and the flags for login
    actions.py           commands with actions, such as `trellis users add`

    serve.py             serve
    config.py            config, check-config, hash-password
    health.py            health
    listing.py           list           row_filters.py       conditions of --filter
    users.py             users, permissions
    sessions.py          sessions
    vhosts_policies.py   vhosts, policies
    definitions.py       definitions
    doctor.py            doctor
    route.py             route          route_text.py, route_expectations.py
    peek.py              peek           readable.py          sizes, times and counts as text
    publish.py           publish
    move.py              move, redrive  confirming.py        questions before changes
    tail.py              tail
    acting.py            purge, pause, resume, close
    retained.py          retained
    importing.py         import
    store.py             store
    cluster.py           cluster        cluster_demo.py      cluster demo
    stream.py            stream         stream_source.py     rows of a stream over HTTP
    replay.py            replay         replay_publisher.py  a small AMQP client
    matching.py          matchers, bench matching
    bench.py             bench load
    pipeline.py          pipeline, whose work the package pyspark_trellis does
    version.py           version
    completion.py        completion     command_tree.py      the commands, read from the parsers
    manual.py            man

A module with commands has `add(commands)`, which adds their parsers. A command is a function that
takes the parsed arguments and returns the exit code: 0 for success, 1 for a failure, 2 for wrong
arguments or settings, or for a missing --yes (manual.py has them all). An error is one line on
stderr.
"""

import os
import sys
from collections.abc import Sequence

from trellis.cli import (
    acting,
    bench,
    cluster,
    completion,
    config,
    definitions,
    doctor,
    health,
    importing,
    listing,
    manual,
    matching,
    move,
    peek,
    pipeline,
    publish,
    replay,
    retained,
    route,
    serve,
    sessions,
    store,
    stream,
    tail,
    users,
    version,
    vhosts_policies,
)
from trellis.cli.parsing import CommandError, Parser
from trellis.settings import SettingsError

USAGE, INTERRUPTED = 2, 130


def parser() -> Parser:
    """Return the parser of the whole command line."""
    root = Parser(
        prog="trellis",
        usage="trellis COMMAND [ARGUMENT]...",
        description="Trellis, a message broker for AMQP 0-9-1 and MQTT.",
        epilog="exit codes: 0 success, 1 failure, 2 wrong arguments or settings, or a missing "
        "--yes, 130 interrupted",
    )
    root.add_argument(
        "--version",
        action=version.PrintVersion,
        nargs=0,
        help="show program's version number and exit",
    )
    commands = root.add_subparsers(
        title="commands", metavar="COMMAND [ARGUMENT]...", dest="command"
    )
    for module in (
        serve,
        config,
        health,
        listing,
        users,
        sessions,
        vhosts_policies,
        definitions,
        doctor,
        route,
        peek,
        publish,
        tail,
        move,
        acting,
        retained,
        importing,
        store,
        cluster,
        stream,
        replay,
        matching,
        bench,
        pipeline,
        version,
        completion,
        manual,
    ):
        module.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default sys.argv, and return its exit code."""
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
        # The program that reads stdout, such as `head`, has ended. The flush at exit would fail
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
