"""`trellis move` and `trellis redrive`: move messages between queues of a running broker."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from trellis.cli.actions import add_vhost
from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.confirming import add_yes, confirm
from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number
from trellis.cli.readable import count_text, rate_text
from trellis.settings.errors import printable

#: Seconds between two requests for the progress of a move.
PAUSE: Final = 0.2
Row = dict[str, Any]


def add(commands: Commands) -> None:
    """Add the parsers of the commands move and redrive."""
    command = add_command(
        commands,
        "move",
        move,
        "move the messages of a queue to another queue or to an exchange; no message is lost or "
        "duplicated",
        "QUEUE --to QUEUE | --exchange NAME [--key KEY]  [--count N] [--rate N] [--dry-run] "
        "[--yes] [--json] [--vhost NAME] [--url URL] [--user NAME --password WORD]",
    )
    command.hint = "; the target is --to QUEUE or --exchange NAME"
    command.add_argument("queue", metavar="QUEUE", help="queue that has the messages")
    command.add_argument("--to", metavar="QUEUE", help="queue to which the messages are moved")
    command.add_argument(
        "--exchange", metavar="NAME", help="exchange to which the messages are published"
    )
    command.add_argument(
        "--key", metavar="KEY", help="routing key for the exchange [the key of each message]"
    )
    _add_common(command)
    command = add_command(
        commands,
        "redrive",
        redrive,
        "move the dead letters of a queue back to the queues from which they came",
        "QUEUE [--count N] [--rate N] [--dry-run] [--yes] [--json] [--vhost NAME] [--url URL] "
        "[--user NAME --password WORD]",
    )
    command.add_argument("queue", metavar="QUEUE", help="queue that has the dead letters")
    _add_common(command)


def _add_common(command: Parser) -> None:
    command.add_argument(
        "--count", type=number(int, 1), metavar="N", help="move at most N messages [all]"
    )
    command.add_argument(
        "--rate",
        type=number(float, 0),
        metavar="N",
        help="move at most N messages per second [no limit]",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="only print what the command would do"
    )
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    add_yes(command)
    add_vhost(command)
    add_login(command)


def move(arguments: argparse.Namespace) -> int:
    """Move messages to a queue or an exchange.

    Return the exit code 1 if the move stopped before its end, or if no message can be moved.
    """
    if (arguments.to is None) == (arguments.exchange is None):
        raise CommandError(
            "name one target of the move: give either --to QUEUE, or --exchange NAME", 2
        )
    if arguments.key is not None and arguments.exchange is None:
        raise CommandError("--key needs --exchange NAME", 2)
    body: Row = {} if arguments.to is None else {"queue": arguments.to}
    if arguments.exchange is not None:
        body["exchange"] = arguments.exchange
    if arguments.key is not None:
        body["key"] = arguments.key
    return _run(arguments, "move", body)


def redrive(arguments: argparse.Namespace) -> int:
    """Move dead letters back to their queues; return the exit code as `move` does."""
    return _run(arguments, "redrive", {})


def _run(arguments: argparse.Namespace, action: str, body: Row) -> int:
    client = ApiClient(arguments)
    path = ("queues", arguments.vhost, arguments.queue, action)
    if arguments.count is not None:
        body["count"] = arguments.count
    if arguments.rate is not None:
        body["rate"] = arguments.rate
    survey = client.json("POST", *path, body=body | {"dry_run": True})
    movable = bool(survey["queues"])
    if arguments.dry_run or not movable:
        _print_result(survey, arguments, survey_lines(survey))
        # No message of a queue with messages can be moved: a failure, also for a dry run.
        return 1 if survey["refused"] and not movable else 0
    confirm(arguments, survey_lines(survey))
    row = _follow(client, client.json("POST", *path, body=body), arguments)
    _print_result(row, arguments, _end_lines(row))
    return 0 if row["state"] == "done" else 1


def _print_result(row: Row, arguments: argparse.Namespace, lines: Iterator[str]) -> None:
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(row)).decode())
        return
    for line in lines:
        print(printable(line))


def survey_lines(survey: Row) -> Iterator[str]:
    """Yield the lines about a dry run: which messages a move would move, and which would stay."""
    examined, messages = survey["examined"], survey["messages"]
    if not messages:
        yield f"queue '{survey['queue']}' has no waiting message"
    if examined < messages:
        total = count_text(messages, "message")
        yield f"the first {examined:,} of {total} in queue '{survey['queue']}' were examined:"
    for queue in survey["queues"]:
        lost = "; the queue is transient: a restart of the broker deletes these messages"
        number = count_text(queue["messages"], "message")
        verb = "goes" if queue["messages"] == 1 else "go"
        yield f"{number} {verb} to queue '{queue['name']}'{lost if queue['transient'] else ''}"
    yield from _refused_lines(survey)


def _refused_lines(row: Row) -> Iterator[str]:
    for reason, messages in row["refused"].items():
        verb = "stays" if messages == 1 else "stay"
        yield f"{count_text(messages, 'message')} {verb} in queue '{row['queue']}': {reason}"


def _end_lines(row: Row) -> Iterator[str]:
    yield f"moved {count_text(row['moved'], 'message')} to {row['destination']}"
    yield from _refused_lines(row)
    if row["state"] == "stopped":
        yield f"the move stopped: {row['reason']}"
    elif row["state"] == "cancelled":
        yield f"the move was cancelled: the other messages stay in queue '{row['queue']}'"


def _follow(client: ApiClient, row: Row, arguments: argparse.Namespace) -> Row:
    """Wait for the end of a move, and show its progress on a terminal. Ctrl-C cancels the move."""
    began = time.monotonic()
    try:
        while row["state"] in ("running", "ending"):
            _show_progress(row, time.monotonic() - began, arguments)
            time.sleep(PAUSE)
            row = client.json("GET", "moves", str(row["id"]))
    except KeyboardInterrupt:
        client.request("DELETE", "moves", str(row["id"]))
        row = client.json("GET", "moves", str(row["id"]))
        print(f"\n{printable(' '.join(_end_lines(row)))}", file=sys.stderr)
        raise
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return row


def _show_progress(row: Row, seconds: float, arguments: argparse.Namespace) -> None:
    if arguments.json or not sys.stderr.isatty():
        return
    rate = rate_text(row["moved"] / seconds if seconds > 0.5 else 0, "message")
    reason = f"; the move waits: {row['reason']}" if row["reason"] else ""
    line = f"{row['moved']:,} of {count_text(row['messages'], 'message')}, {rate}{reason}"
    print(f"\r\x1b[K{printable(line)}", end="", file=sys.stderr, flush=True)
