"""`trellis ask`: answers questions about published messages and their routing, without Spark.

The package pyspark_trellis does the work in this process; it needs the packages of the extra
`arrow`. The command imports pyspark_trellis by name, because no module of the broker may import
that package.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from trellis.cli.api_client import ApiClient, add_login, credentials
from trellis.cli.history_arguments import (
    OWN_JOURNAL,
    add_check,
    add_definitions,
    add_jobs,
    add_json,
    add_question,
    imported,
)
from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    load_settings,
    time_of,
)

#: The module that answers the questions.
_ASKING: Final = "pyspark_trellis.asking"
_USAGE: Final = "traffic|unroutable|whatif|audit|advise [ARGUMENT]..."


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis ask`, with a parser for each question."""
    command = add_command(
        commands,
        "ask",
        _needs_job,
        "answer questions about published messages from a journal, without Spark",
        _USAGE,
    )
    tools = command.add_subparsers(title="questions", metavar="QUESTION", dest="job")
    tool = _add(
        tools, "traffic", "count messages, bytes, copies and unroutable messages", "[--by GROUP]"
    )
    tool.add_argument(
        "--by",
        choices=("topic", "exchange", "vhost", "minute", "hour", "day"),
        metavar="topic|exchange|vhost|minute|hour|day",
        default="topic",
        help="count the messages of each topic, exchange, virtual host or unit of time [topic]",
    )
    add_json(tool)
    tool = _add(
        tools,
        "unroutable",
        "list topics with messages that reached no queue, and the nearest binding of each",
        "[--definitions FILE|URL|--as-of TIME] [--check]",
    )
    add_definitions(tool)
    add_json(tool)
    add_check(tool, "a message reached no queue")
    add_jobs(partial(_add, tools))


def _add(tools: Any, name: str, text: str, usage: str) -> Parser:
    usage = f"[--journal PLACE] {usage.removeprefix('HISTORY ')} [--since TIME] [--until TIME]"
    tool = add_command(tools, name, run, text, usage, group="ask")
    add_history(tool)
    return tool


def add_history(tool: Parser) -> None:
    """Add the arguments that select the messages and the bindings to examine."""
    add_question(tool, OWN_JOURNAL)
    add_times(tool)
    add_login(tool)


def add_times(tool: argparse._ActionsContainer) -> None:
    """Add --since and --until, which select messages by the time of their arrival."""
    for flag, text in (
        ("--since", "read only messages that the broker received from this time on"),
        ("--until", "read only messages that the broker received before this time"),
    ):
        tool.add_argument(
            flag,
            type=time_of,
            metavar="TIME",
            help=f"{text}; TIME is an age such as 15m, 2h or 7d, or an ISO 8601 time",
        )


def _needs_job(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "name a question: traffic, unroutable, whatif, audit or advise (see `trellis ask --help`)",
        2,
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer the question that the arguments of `trellis ask` name; return the exit code.

    Raises CommandError, with exit code 2 for an error in arguments or input.
    """
    return answer(arguments, _ASKING)


def answer(arguments: argparse.Namespace, module: str) -> int:
    """Run `run(arguments)` of a module of pyspark_trellis; return the exit code.

    `module` is the full name of the module. Raises CommandError.
    """
    errors, runner = imported(arguments, module, "arrow")
    _find_journal(arguments)
    try:
        code: int = runner.run(arguments)
    except errors.PipelineError as error:
        raise CommandError(str(error), 2) from None
    return code


def _find_journal(arguments: argparse.Namespace) -> None:
    """Set the journal, and the login for it, in the arguments.

    Without --journal and --traffic, the journal is a stream of the running broker, which --url or
    the settings name.
    """
    arguments.credentials = {}
    if arguments.journal is None and arguments.traffic is None:
        client = ApiClient(arguments)
        arguments.journal = client.base
        login = (client.user, client.password)
        if arguments.stream is None:
            arguments.stream = _journal_of(client)
    elif arguments.login_user or arguments.login_password or arguments.login_password_file:
        login = credentials(arguments, load_settings(arguments).settings)
    else:
        return
    arguments.credentials = dict(zip(("user", "password"), login, strict=True))


def _journal_of(client: ApiClient) -> str:
    """Return the only journal that the user may read, as VHOST/QUEUE.

    Raises CommandError if the user may read no journal, or several.
    """
    rows = client.json("GET", "streams")
    journals = [f"{row['vhost']}/{row['name']}" for row in rows if row["journal"]]
    if len(journals) == 1:
        return journals[0]
    if journals:
        raise CommandError(
            f"the broker {client.base} has several journals: name one with --stream: "
            f"{', '.join(journals)}",
            2,
        )
    raise CommandError(
        f"user {client.user} may read no journal of the broker {client.base}: declare a stream "
        "with x-journal=true, or grant the permission read on it; or name a directory with "
        "--journal",
        2,
    )
