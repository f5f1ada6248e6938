"""`trellis pipeline`: command line of the data pipeline on Spark.

The package pyspark_trellis does the work; it needs the packages of the extra `pipeline`. A job
imports pyspark_trellis by name, because no module of the broker may import that package.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, Final

from trellis.cli.api_client import add_login
from trellis.cli.history_arguments import (
    add_definitions,
    add_jobs,
    add_journal,
    add_mode,
    add_question,
    find_journal,
    history_usage,
    imported,
)
from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number

#: The module that runs the jobs.
_COMMANDS: Final = "pyspark_trellis.commands"
_USAGE: Final = "lake|traffic|whatif|audit|advise|report|bench|demo [ARGUMENT]..."


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis pipeline`, with a parser for each job."""
    command = add_command(
        commands,
        "pipeline",
        _needs_job,
        "archive published messages and analyse their routing with Spark",
        _USAGE,
    )
    tools = command.add_subparsers(title="jobs", metavar="JOB", dest="job")
    for name, text in (
        (
            "lake",
            "archive a journal as Parquet by day, virtual host and exchange, each row exactly once",
        ),
        (
            "traffic",
            "archive counts per topic and minute: messages, bytes, copies, unroutable messages",
        ),
    ):
        tool = _add(tools, name, text, "--journal PLACE --target DIR [--once|--follow] [--json]")
        add_journal(tool, required=True)
        tool.add_argument(
            "--target",
            metavar="DIR",
            required=True,
            help="directory to write to, or a URL that Spark supports (hdfs://, s3a://)",
        )
        tool.add_argument(
            "--checkpoint",
            metavar="DIR",
            help="directory that stores how far the journal is read [TARGET.checkpoint]",
        )
        _add_result(tool)
        add_login(tool)
        add_mode(tool, "stop at the present end of the journal (the default)", "run until Ctrl-C")
        tool.add_argument(
            "--wait",
            action="store_true",
            help="if the journal has no message or does not exist, wait for the first message",
        )
        tool.add_argument(
            "--max-rows",
            metavar="N",
            type=number(int, 1),
            default=1_000_000,
            help="largest number of rows that Spark reads and writes at a time [1000000]",
        )
    add_jobs(partial(_add_question, tools))
    tool = _add_question(
        tools,
        "report",
        "write an HTML page with plots of traffic, changes and findings",
        "HISTORY --definitions FILE|URL|--as-of TIME [--proposed FILE] [--output FILE] "
        "[--once|--follow] [--json]",
    )
    _add_result(tool)
    add_definitions(tool)
    tool.add_argument(
        "--proposed",
        metavar="FILE",
        help="file with proposed definitions: the page gets a section with the answer of `trellis "
        "ask whatif` about them",
    )
    tool.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="HTML file to write [report.html]",
    )
    tool = _add(
        tools,
        "bench",
        "compare the data source and bulk matching with handwritten code that has equal results",
        "[--quick]",
    )
    tool.add_argument(
        "--quick", action="store_true", help="measure with a hundredth of the messages"
    )
    tool.add_argument("--json", metavar="FILE", type=Path, help="write the figures to FILE")
    tool = _add(
        tools,
        "demo",
        "start a broker, publish an hour of traffic, run the pipeline, and write its report",
        "[--output DIR]",
    )
    tool.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path("trellis-demo"),
        help="directory for all files that the demo writes [trellis-demo]",
    )
    tool.add_argument(
        "--messages",
        metavar="N",
        type=number(int, 1),
        default=60_000,
        help="messages to publish [60000]",
    )


def _add(tools: Any, name: str, text: str, usage: str) -> Parser:
    tool = add_command(tools, name, run, text, f"{usage} [--master URL]", group="pipeline")
    tool.add_argument(
        "--master",
        metavar="URL",
        default="local[*]",
        help="Spark master: local[N], spark://HOST:PORT, sc://HOST:PORT (Spark Connect), ... "
        "[local[*]]",
    )
    tool.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark; may be given several times",
    )
    return tool


def _add_result(tool: Parser) -> None:
    """Add the flag --json, which describes the written data as a JSON object.

    With --json FILE, the job writes the object to FILE; without FILE, the job prints the object.
    """
    tool.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print the numbers and places of the written data as a JSON object instead of a line "
        "of text; with FILE, write this object to FILE, and print the line of text",
    )


def _add_question(tools: Any, name: str, text: str, usage: str) -> Parser:
    """Add the parser of a job that examines past messages, and return it.

    `text` is the help text of the job, `usage` shows its flags.
    """
    tool = _add(tools, name, text, history_usage(usage))
    add_question(tool)
    return tool


def _needs_job(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "`trellis pipeline` needs a job: lake, traffic, whatif, audit, advise, report, bench or "
        "demo (see `trellis pipeline --help`)",
        2,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run a job. Raises CommandError, with the exit codes of `trellis ask`."""
    errors, commands = imported(arguments, _COMMANDS, "pipeline")
    if hasattr(arguments, "journal"):
        find_journal(arguments)
    try:
        code: int = commands.run(arguments)
    except Exception as error:  # Errors of Spark have no common base class.
        line = errors.line_of(error)
        if line is None:
            if not errors.of_spark(error):
                raise
            raise CommandError(f"{arguments.job}: {errors.brief(error)}") from error
        exit_code = error.code if isinstance(error, errors.PipelineError) else 2
        raise CommandError(line, exit_code) from None
    return code
