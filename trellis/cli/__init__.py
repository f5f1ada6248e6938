"""The command `trellis`.

Modules that many commands use:

    parsing.py           arguments: one-line errors, the flags of the settings
    table.py             rows as a table
    api_client.py        HTTP requests to a running broker, and the flags for login
    actions.py           commands with actions, such as `trellis users add`
    readable.py          sizes, times and counts as text
    confirming.py        questions before changes
    missing_objects.py   the next command after an error about a missing object

In each line: a module, its commands, and a module that supports them, with its content:

    serve.py             serve
    config.py            config, check-config, hash-password
    tokens.py            auth
    health.py            health
    listing.py           list           row_filters.py       conditions of --filter
    users.py             users, permissions
                                        user_import.py       users import; user_file.py
    roles.py             roles
    sessions.py          sessions
    vhosts_policies.py   vhosts, policies
    topology.py          queues, exchanges, bindings
                                        consequences.py      consequences of a deletion
                                        right_consequences.py  rights that a change takes away
    definitions.py       definitions
    doctor.py            doctor
    route.py             route          route_text.py        the answer as text
                                        route_expectations.py  tests of a topology (--expect)
                                        routes_in_memory.py  routes without a running broker
    why.py               why
    peek.py              peek
    publish.py           publish
    tail.py              tail
    trace.py             trace
    move.py              move, redrive
    acting.py            purge, pause, resume, close
    retained.py          retained
    importing.py         import
    store.py             store
    cluster.py           cluster        cluster_demo.py      cluster demo
                                        cluster_adopt.py     cluster adopt
                                        cluster_log.py       settings of the cluster
    stream.py            stream         stream_source.py     rows of a stream over HTTP
                                        export.py            stream export
    replay.py            replay         replay_publisher.py  a small AMQP client
    matching.py          matchers, bench matching
    bench.py             bench load
    ask.py               ask            history_arguments.py arguments of ask and pipeline
    report.py            report
    asyncapi.py          asyncapi
    connect.py           connect
    pipeline.py          pipeline (its jobs are in the package pyspark_trellis)
    version.py           version
    completion.py        completion     command_tree.py      the commands, read from the parsers
    manual.py            man

A module with commands has `add(commands)`, which adds their parsers. A command is a function that
takes the parsed arguments and returns the exit code: 0 for success, 1 for a failure, 2 for wrong
arguments or settings, or for a missing --yes (manual.py lists all exit codes). A command that fails
raises CommandError or SettingsError, whose text `main` prints as one line on stderr.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from trellis.cli.parsing import CommandError, Parser
from trellis.cli.version import PrintVersion
from trellis.settings import SettingsError

USAGE, INTERRUPTED = 2, 130
#: The commands, in the order of `trellis --help`, and the module that has each.
COMMANDS: Final = {
    "serve": "serve",
    "config": "config",
    "check-config": "config",
    "hash-password": "config",
    "auth": "tokens",
    "health": "health",
    "list": "listing",
    "users": "users",
    "permissions": "users",
    "roles": "roles",
    "sessions": "sessions",
    "vhosts": "vhosts_policies",
    "policies": "vhosts_policies",
    "queues": "topology",
    "exchanges": "topology",
    "bindings": "topology",
    "definitions": "definitions",
    "doctor": "doctor",
    "route": "route",
    "why": "why",
    "peek": "peek",
    "publish": "publish",
    "tail": "tail",
    "trace": "trace",
    "move": "move",
    "redrive": "move",
    "purge": "acting",
    "pause": "acting",
    "resume": "acting",
    "close": "acting",
    "retained": "retained",
    "import": "importing",
    "store": "store",
    "cluster": "cluster",
    "stream": "stream",
    "replay": "replay",
    "matchers": "matching",
    "bench": "bench",
    "ask": "ask",
    "report": "report",
    "asyncapi": "asyncapi",
    "connect": "connect",
    "pipeline": "pipeline",
    "version": "version",
    "completion": "completion",
    "man": "manual",
}
#: The commands that need the parsers of all other commands.
_WHOLE: Final = frozenset({"completion", "man"})


def parser(command: str = "") -> Parser:
    """Return the parser of the whole command line.

    With the name of a command, return a parser that knows only the commands of the same module, so
    that a command does not wait for the imports of all others. Only `completion` and `man` need the
    parsers of all commands. With `--version`, return a parser that knows no command.
    """
    alone = command in COMMANDS and command not in _WHOLE
    modules = [COMMANDS[command]] if alone else list(dict.fromkeys(COMMANDS.values()))
    if command == "--version":
        modules = []
    root = Parser(
        prog="trellis",
        usage="trellis COMMAND [ARGUMENT]...",
        description="Trellis, a message broker for AMQP 0-9-1 and MQTT.",
        epilog="exit codes: 0 success, 1 failure, 2 wrong arguments or settings, or a missing "
        "--yes, 3 another node owns the log of the cluster (serve), 130 interrupted",
    )
    root.add_argument(
        "--version",
        action=PrintVersion,
        nargs=0,
        help="show program's version number and exit",
    )
    commands = root.add_subparsers(
        title="commands", metavar="COMMAND [ARGUMENT]...", dest="command"
    )
    for module in modules:
        import_module(f"trellis.cli.{module}").add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default sys.argv, and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    root = parser(given[0] if given else "")
    try:
        try:
            arguments = root.parse(given)
        except SystemExit as end:  # argparse has printed the text of --help or --version.
            return int(end.code or 0)
        if arguments.command is None:
            root.print_help()
            return USAGE
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"trellis: {error}{error.advice()}", file=sys.stderr)
        return error.code
    except SettingsError as error:
        print(f"trellis: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The program that reads stdout, such as `head`, has ended. The flush at exit would fail
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
