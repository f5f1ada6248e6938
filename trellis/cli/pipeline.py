"""`trellis pipeline`: the data pipeline on Spark. Here are its arguments; the work is done by the
package of the extra [pipeline], which nothing of the broker imports: it is found by its name when
it is needed.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number

#: Who does the work.
_COMMANDS: Final = "pyspark_trellis.commands"
_USAGE: Final = "lake|traffic|whatif|audit|advise|report|bench|demo [ARGUMENT]..."


def add(commands: Commands) -> None:
    command = add_command(
        commands,
        "pipeline",
        _help,
        "keep what was published, and answer questions about routing (on Spark)",
        _USAGE,
    )
    tools = command.add_subparsers(title="jobs", metavar="JOB", dest="job")
    for name, text in (
        ("lake", "keep a journal as Parquet, by day, vhost and exchange, each row exactly once"),
        (
            "traffic",
            "keep what each topic did in each minute: messages, octets, copies, unroutable",
        ),
    ):
        tool = _add(tools, name, text, "--journal PLACE --target DIR [--once|--follow]")
        _journal(tool, required=True)
        tool.add_argument(
            "--target",
            metavar="DIR",
            required=True,
            help="where it is kept: a directory, or what Spark knows (hdfs://, s3a://)",
        )
        tool.add_argument(
            "--checkpoint",
            metavar="DIR",
            help="where it is noted how far the journal was read [TARGET.checkpoint]",
        )
        _mode(tool, "up to what is there now (the default)", "until Ctrl-C")
        tool.add_argument(
            "--max-rows",
            metavar="N",
            type=number(int, 1),
            default=1_000_000,
            help="rows of one step [1000000]",
        )
    tool = _add(
        tools,
        "whatif",
        "ask who would get what was published, by proposed definitions; exit code 1 if something would be lost",
        "HISTORY --definitions FILE [--current FILE|--as-of TIME] [--once|--follow]",
    )
    _question(tool)
    tool.add_argument(
        "--definitions", metavar="FILE", required=True, help="the definitions proposed"
    )
    tool.add_argument(
        "--current",
        metavar="FILE|URL",
        help="the definitions now [$topology, else what the journal says was routed]",
    )
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write all of the answer there; - is standard output, without the table",
    )
    tool = _add(
        tools,
        "audit",
        "name bindings that are dead, duplicate, subsumed or overlapping, and topics that nobody gets",
        "HISTORY --definitions FILE|URL|--as-of TIME [--once|--follow]",
    )
    _question(tool)
    _definitions(tool)
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write all that was found there; - is standard output, without the table",
    )
    tool = _add(
        tools,
        "advise",
        "measure the matchers on what was published, and write a profile for the broker (matcher.profile)",
        "HISTORY --definitions FILE|URL|--as-of TIME [--output FILE] [--once|--follow]",
    )
    _question(tool)
    _definitions(tool)
    tool.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("matching-profile.json"),
        help="[matching-profile.json]",
    )
    tool = _add(
        tools,
        "report",
        "write one page with plots of all that",
        "HISTORY --definitions FILE|URL|--as-of TIME [--proposed FILE] [--output FILE] [--once|--follow]",
    )
    _question(tool)
    _definitions(tool)
    tool.add_argument(
        "--proposed", metavar="FILE", help="definitions to be asked about, as in whatif"
    )
    tool.add_argument(
        "--output", metavar="FILE", type=Path, default=Path("report.html"), help="[report.html]"
    )
    tool = _add(
        tools,
        "bench",
        "measure the source and bulk matching beside what one would write by hand; equal results are asserted",
        "[--quick]",
    )
    tool.add_argument("--quick", action="store_true", help="a hundredth of the messages")
    tool.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    tool = _add(
        tools,
        "demo",
        "start a broker, publish an hour of traffic, run the whole pipeline, and write its report",
        "[--output DIR]",
    )
    tool.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path("trellis-demo"),
        help="where all of it is kept [trellis-demo]",
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
        help="Spark's master: local[N], spark://HOST:PORT, ... [local[*]]",
    )
    tool.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark's; may be given again",
    )
    return tool


def _journal(tool: Parser, required: bool) -> None:
    tool.add_argument(
        "--journal",
        metavar="PLACE",
        required=required,
        help="a stream's directory, or http://USER:PASSWORD@HOST:15672",
    )
    tool.add_argument(
        "--stream", metavar="QUEUE", help="which stream, over HTTP: QUEUE, or VHOST/QUEUE"
    )
    tool.add_argument(
        "--starting",
        metavar="OFFSET",
        default="earliest",
        help="earliest, latest or an offset [earliest]",
    )
    tool.add_argument(
        "--pattern", metavar="PATTERN", help="only topics that this AMQP pattern matches"
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
        help="with --follow: seconds between two looks [5]",
    )


def _question(tool: Parser) -> None:
    group = tool.add_argument_group(
        "history", "What was published: a journal, or what `trellis pipeline traffic` made of it."
    )
    _journal(group, required=False)  # type: ignore[arg-type]  # a group adds arguments as a parser does
    group.add_argument(
        "--ending",
        metavar="OFFSET",
        default="latest",
        help="latest, or the first offset that is not read any more [latest]",
    )
    group.add_argument(
        "--traffic",
        metavar="DIR",
        help="the target of `trellis pipeline traffic`, instead of a journal",
    )
    group = tool.add_argument_group(
        "topology",
        "What led where, as the broker's stream $topology says: subscriptions of MQTT sessions, which stand in no definitions "
        "file; and all bindings, where no file says them.",
    )
    group.add_argument(
        "--topology",
        metavar="PLACE",
        help="its directory, or http://USER:PASSWORD@HOST:15672; none: ask without it "
        "[that beside the journal]",
    )
    group.add_argument(
        "--as-of",
        metavar="TIME",
        help="as it was then (ISO 8601, UTC where no zone is said) [as it is]",
    )
    _mode(
        tool, "answer once (the default)", "answer again each time more was published, until Ctrl-C"
    )


def _definitions(tool: Parser) -> None:
    tool.add_argument(
        "--definitions",
        metavar="FILE|URL",
        help="definitions as `trellis definitions export` writes them, or the broker: "
        "http://USER:PASSWORD@HOST:15672 [$topology]",
    )


def _help(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "name a job: lake, traffic, whatif, audit, advise, report, bench or demo (see `trellis pipeline --help`)",
        2,
    )


def run(arguments: argparse.Namespace) -> int:
    """Raises CommandError: code 2 for what the user can mend."""
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
    except Exception as error:  # What Spark raises has no base class of its own.
        line = errors.line_of(error)
        if line is None:
            if not errors.of_spark(error):
                raise
            raise CommandError(f"{arguments.job}: {errors.brief(error)}") from error
        raise CommandError(line, 2) from None
    return code
