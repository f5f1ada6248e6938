"""`trellis report`: keeps reports about a journal and its bindings, and shows their differences.

The package pyspark_trellis does the work, as for `trellis ask`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from trellis.cli.api_client import add_login
from trellis.cli.ask import answer
from trellis.cli.history_arguments import (
    OWN_JOURNAL,
    add_check,
    add_definitions,
    add_place,
    add_topology,
)
from trellis.cli.parsing import CommandError, Commands, add_command, age_of, number, time_of

#: The module that makes the reports.
_REPORTS: Final = "pyspark_trellis.kept_reports"
_DAY: Final = 86_400
#: The longest interval and period of a report in seconds.
_LONGEST: Final = 36_500 * _DAY


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis report`."""
    command = add_command(
        commands,
        "report",
        report,
        "keep a report about published messages and bindings, and show the differences from the "
        "previous report",
        "--keep DIR [--every AGE] [--over AGE] [--journal PLACE] [--definitions FILE|URL]",
    )
    command.add_argument(
        "--keep",
        dest="directory",
        metavar="DIR",
        type=Path,
        required=True,
        help="directory of the reports",
    )
    command.add_argument(
        "--every",
        metavar="AGE",
        type=age_of,
        help="make a report whenever the latest report is AGE old, such as 1h or 1d, until Ctrl-C "
        "[make one report]",
    )
    command.add_argument(
        "--over",
        metavar="AGE",
        type=age_of,
        help="length of the period whose messages a report covers [--every, else 1d]",
    )
    command.add_argument(
        "--until",
        metavar="TIME",
        type=time_of,
        help="end of the period: an age such as 2h, or an ISO 8601 time; not with --every [now]",
    )
    command.add_argument(
        "--most",
        metavar="N",
        type=number(int, 2),
        default=100,
        help="number of reports to keep; older ones are removed [100]",
    )
    command.add_argument(
        "--json",
        metavar="FILE",
        help="write the report and the differences as JSON to FILE; - prints the JSON instead of "
        "the text",
    )
    add_check(command, "there is a new finding")
    group = command.add_argument_group("history", "Published messages: a journal.")
    add_place(group, required=False, default=OWN_JOURNAL)
    add_topology(command)
    add_definitions(command)
    command.set_defaults(
        job="report", starting="earliest", ending="latest", traffic=None, follow=False, as_of=None
    )
    add_login(command)


def report(arguments: argparse.Namespace) -> int:
    """Make one report; with --every, make a report whenever the latest one is too old.

    Raises CommandError.
    """
    if arguments.every is not None and arguments.until is not None:
        raise CommandError(
            "--until is the end of a single report, and --every makes many: give only one of them",
            2,
        )
    if arguments.every is not None and arguments.check:
        raise CommandError(
            "--check needs the exit code of a single report, and --every makes many: give only one "
            "of them",
            2,
        )
    if arguments.every == 0 or arguments.over == 0:
        raise CommandError("--every and --over must be longer than 0 s", 2)
    if max(arguments.every or 0, arguments.over or 0) > _LONGEST:
        raise CommandError("--every and --over must be at most 36500d (100 years)", 2)
    arguments.over = arguments.over or arguments.every or _DAY
    return answer(arguments, _REPORTS)
