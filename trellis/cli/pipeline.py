"""`trellis pipeline`: command line of the data pipeline on Spark.

The package pyspark_trellis does the work; it needs the packages of the extra `pipeline`. A job
imports pyspark_trellis by name, because no module of the broker may import that package.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any, Final

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
        tool = _add(tools, name, text, "--journal PLACE --target DIR [--once|--follow]")
        _journal(tool, required=True)
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
        _mode(tool, "stop at the present end of the journal (the default)", "run until Ctrl-C")
        tool.add_argument(
            "--max-rows",
            metavar="N",
            type=number(int, 1),
            default=1_000_000,
            help="most rows that Spark reads and writes at a time [1000000]",
        )
    tool = _add(
        tools,
        "whatif",
        "replay the history against proposed definitions and report changed deliveries; exit code "
        "1 if a message would be lost",
        "HISTORY --definitions FILE [--current FILE|--as-of TIME] [--once|--follow]",
    )
    _question(tool)
    tool.add_argument("--definitions", metavar="FILE", required=True, help="proposed definitions")
    tool.add_argument(
        "--current",
        metavar="FILE|URL",
        help="current definitions, to compare with [$topology, else the routes in the journal]",
    )
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write the whole answer to FILE; - is standard output, without the table",
    )
    tool = _add(
        tools,
        "audit",
        "report dead, duplicate, subsumed and overlapping bindings, and topics without a receiver",
        "HISTORY --definitions FILE|URL|--as-of TIME [--once|--follow]",
    )
    _question(tool)
    _definitions(tool)
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write all findings to FILE; - is standard output, without the table",
    )
    tool = _add(
        tools,
        "advise",
        "measure the matching algorithms on the history, and write a profile for the setting "
        "matcher.profile",
        "HISTORY --definitions FILE|URL|--as-of TIME [--output FILE] [--once|--follow]",
    )
    _question(tool)
    _definitions(tool)
    tool.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("matching-profile.json"),
        help="profile to write [matching-profile.json]",
    )
    tool = _add(
        tools,
        "report",
        "write an HTML page with plots of traffic, changes and findings",
        "HISTORY --definitions FILE|URL|--as-of TIME [--proposed FILE] [--output FILE] "
        "[--once|--follow]",
    )
    _question(tool)
    _definitions(tool)
    tool.add_argument("--proposed", metavar="FILE", help="proposed definitions, as in whatif")
    tool.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="page to write [report.html]",
    )
    tool = _add(
        tools,
        "bench",
        "measure the data source and bulk matching against handwritten code with equal results",
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
    tool: Parser = tools.add_parser(
        name,
        prog=f"trellis pipeline {name}",
        usage=f"trellis pipeline {name} {usage} [--master URL]",
        help=text,
        description=text[:1].upper() + text[1:] + ".",
    )
    tool.set_defaults(run=run, parser=tool)
    tool.add_argument(
        "--master",
        metavar="URL",
        default="local[*]",
        help="Spark master: local[N], spark://HOST:PORT, ... [local[*]]",
    )
    tool.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="Spark setting; may be given several times",
    )
    return tool


def _journal(tool: argparse._ActionsContainer, required: bool) -> None:
    tool.add_argument(
        "--journal",
        metavar="PLACE",
        required=required,
        help="journal to read: directory of a stream, or the broker: http://HOST:15672",
    )
    tool.add_argument(
        "--stream",
        metavar="QUEUE",
        help="name of the stream, as QUEUE or VHOST/QUEUE; only if --journal is a URL",
    )
    tool.add_argument(
        "--starting",
        metavar="OFFSET",
        default="earliest",
        help="first offset to read: earliest, latest or a number [earliest]",
    )
    tool.add_argument(
        "--pattern", metavar="PATTERN", help="read only topics that match this AMQP binding key"
    )


def _mode(tool: Parser, once: str, follow: str) -> None:
    mode = tool.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help=once)
    mode.add_argument("--follow", action="store_true", help=follow)
    tool.add_argument(
        "--every",
        metavar="S",
        type=number(int, 1),
        default=5,
        help="with --follow: seconds between two reads [5]",
    )


def _question(tool: Parser) -> None:
    group = tool.add_argument_group(
        "history", "Published messages: a journal, or the counts of `trellis pipeline traffic`."
    )
    _journal(group, required=False)
    group.add_argument(
        "--ending",
        metavar="OFFSET",
        default="latest",
        help="end offset, not included: latest or a number [latest]",
    )
    group.add_argument(
        "--traffic",
        metavar="DIR",
        help="read the counts that `trellis pipeline traffic --target DIR` wrote, instead of a "
        "journal",
    )
    group = tool.add_argument_group(
        "topology",
        "Bindings and MQTT subscriptions from the broker's stream $topology. The stream is needed "
        "for the subscriptions, which a definitions file lacks, and for all bindings if no file is "
        "given.",
    )
    group.add_argument(
        "--topology",
        metavar="PLACE",
        help="directory of $topology, or the broker: http://HOST:15672; or none, to use "
        "no topology "
        "[the $topology beside the journal]",
    )
    group.add_argument(
        "--as-of",
        metavar="TIME",
        help="use the topology of this time (ISO 8601; UTC if it has no zone) [the latest]",
    )
    _mode(tool, "answer once (the default)", "answer again after new messages, until Ctrl-C")


def _definitions(tool: Parser) -> None:
    tool.add_argument(
        "--definitions",
        metavar="FILE|URL",
        help="definitions as `trellis definitions export` writes them, or the broker: "
        "http://HOST:15672 [$topology]",
    )


def _needs_job(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "name a job: lake, traffic, whatif, audit, advise, report, bench or demo "
        "(see `trellis pipeline --help`)",
        2,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run a job. Raises CommandError, with exit code 2 for an error in arguments or input."""
    try:
        errors: Any = import_module("pyspark_trellis.errors")
        commands: Any = import_module(_COMMANDS)
    except ImportError as error:
        raise CommandError(
            f"the pipeline needs {error.name or 'packages'}, which is not installed here: "
            "pip install 'trellis-broker[pipeline]'",
            2,
        ) from None
    try:
        code: int = commands.run(arguments)
    except Exception as error:  # Errors of Spark have no common base class.
        line = errors.line_of(error)
        if line is None:
            if not errors.of_spark(error):
                raise
            raise CommandError(f"{arguments.job}: {errors.brief(error)}") from error
        raise CommandError(line, 2) from None
    return code
