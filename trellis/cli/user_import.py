"""`trellis users import FILE`: adds or changes all users of a file, or none.

The broker first tries the import with the hash of a random password in place of each password. So
the command reports a refused file or a wrong login before it spends time on hashing the passwords.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import msgspec

from trellis.auth.passwords import decoy_hash
from trellis.cli.actions import PERMISSIONS, print_json
from trellis.cli.api_client import ApiClient
from trellis.cli.confirming import confirm_losses
from trellis.cli.consequences import SHOWN
from trellis.cli.definitions import ImportResult, print_report, report_row, request_import
from trellis.cli.readable import count_text
from trellis.cli.user_file import Row, definitions_of, password_hashes, read_users, users_of
from trellis.progress import Interval, ProgressLine
from trellis.settings.errors import printable

#: Fields of a file of users that permit a user to connect to a virtual host.
RIGHTS: Final = (*PERMISSIONS, "rules", "role")
#: Seconds between two updates of the progress line, and between two lines of progress if stderr is
#: no terminal.
_REDRAW_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 10.0


def import_users(arguments: argparse.Namespace) -> int:
    """Import the users of a file, all or none; the exit code is 1 if the broker refuses a user.

    If existing users get another password or other tags or rights, ask for a confirmation first.
    """
    rows = read_users(arguments.file)
    client = ApiClient(arguments)
    decoys = (decoy_hash() if "password" in row else None for row in rows)
    data = _document(rows, list(users_of(rows, decoys)))
    # A user whose rules are refused would have all permissions: so all users are imported, or none.
    report = request_import(client, data, dry_run=True)
    dry_run = arguments.dry_run or bool(report.refused)
    if not dry_run:
        present = report
        confirm_losses(arguments, lambda: _change_lines(present))
        data = _document(rows, _hashed(rows))
        report = request_import(client, data, dry_run=False)
    return _print(arguments, rows, report, data, dry_run)


def _change_lines(report: ImportResult) -> list[str]:
    """Return the lines about the existing users that an import will change.

    `report` is the report of a dry run. Each password in the file counts as a change, because it is
    not compared with the present password.
    """
    users = dict.fromkeys(change.name for change in report.changes)
    if not users:
        return []
    more = "at least " if report.more_changes else ""
    named = set(list(users)[:SHOWN])
    lines = [f"the import will change {more}{count_text(len(users), 'existing user')}:"]
    lines += [f"  {change.text}" for change in report.changes if change.name in named]
    if len(users) > SHOWN:
        lines.append(f"further users that will change: {more}{len(users) - SHOWN:,}")
    return lines


def _document(rows: list[Row], users: list[Row]) -> bytes:
    return msgspec.json.encode(definitions_of(rows, users))


def _hashed(rows: list[Row]) -> list[Row]:
    """Return the users with the hashes of their passwords, and show the progress."""
    line, redraw, report = ProgressLine(), Interval(_REDRAW_SECONDS), Interval(_LINE_SECONDS)
    line.begin("hashing passwords")
    terminal = sys.stderr.isatty()
    users = []
    try:
        for user in users_of(rows, password_hashes(rows)):
            users.append(user)
            state = f"{len(users):,} of {len(rows):,}"
            if redraw.due():
                line.bar(len(users) / len(rows), state)
            if not terminal and report.due():
                print(f"hashing passwords: {state}", file=sys.stderr, flush=True)
    finally:
        line.end()
    return users


def _print(
    arguments: argparse.Namespace,
    rows: list[Row],
    report: ImportResult,
    data: bytes,
    dry_run: bool,
) -> int:
    """Print the report of an import. Return 1 if the broker refused a definition, else 0.

    `dry_run` is True if nothing was changed.
    """
    without = [row["name"] for row in rows if not any(row.get(name) for name in RIGHTS)]
    if arguments.json:
        fields: dict[str, Any] = {"cannot_connect": without}
        print_json(report_row(report, data, dry_run) | fields)
        return 1 if report.refused else 0
    code = print_report(report, data, dry_run)
    note = ""
    if report.refused:
        note = "nothing was imported, because the broker would refuse some definitions"
    elif without:
        note = (
            f"note: users that cannot connect yet: {len(without)}, such as {without[0]}; the file "
            "has no permissions and no rules for them"
        )
    if note:
        print(printable(note), file=sys.stderr)
    return code
