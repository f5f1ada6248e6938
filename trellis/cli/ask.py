"""`trellis ask`: answers questions about published messages and their routing, without Spark.

The package pyspark_trellis does the work in this process; it needs the packages of the extra
`arrow`. The command imports pyspark_trellis by name, because no module of the broker may import
that package.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from trellis.cli.history_arguments import (
    add_check,
    add_definitions,
    add_jobs,
    add_json,
    add_question,
    find_journal,
    history_usage,
    imported,
)
from trellis.cli.parsing import CommandError, Commands, Parser, add_command

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
    tool = add_command(tools, name, run, text, history_usage(usage), group="ask")
    add_question(tool)
    return tool


def _needs_job(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "`trellis ask` needs a question: traffic, unroutable, whatif, audit or advise (see "
        "`trellis ask --help`)",
        2,
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer the question that the arguments of `trellis ask` name; return the exit code.

    Raises CommandError, with exit code 2 for an error in arguments or input, and 1 if the broker
    does not answer or refuses the request.
    """
    return answer(arguments, _ASKING)


def answer(arguments: argparse.Namespace, module: str, extra: str = "arrow") -> int:
    """Run `run(arguments)` of a module of pyspark_trellis; return the exit code.

    `module` is the full name of the module, and `extra` has the packages that it needs. Raises
    CommandError.
    """
    errors, runner = imported(arguments, module, extra)
    find_journal(arguments)
    try:
        code: int = runner.run(arguments)
    except errors.PipelineError as error:
        raise CommandError(str(error), error.code) from None
    return code
