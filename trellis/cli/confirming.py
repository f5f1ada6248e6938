"""Asks before a command changes something that cannot be undone.

The command prints what it would do, computed from the present state of the broker, and asks the
user. With --yes, the command neither prints nor asks. Without a terminal and without --yes, the
command prints what it would do, and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from trellis.cli.api_client import ApiClient
from trellis.cli.parsing import CommandError, Parser
from trellis.cli.readable import rate_text
from trellis.settings.errors import printable

#: The exit code of a command that needs --yes.
_NEEDS_YES: Final = 2
#: Seconds between the two readings of a counter from which a rate is computed.
_RATE_SECONDS: Final = 1.0


def add_yes(command: Parser) -> None:
    """Add the flag --yes, with which the command asks for no confirmation."""
    command.add_argument(
        "--yes",
        action="store_true",
        help="do not ask for confirmation; required if standard input is not a terminal",
    )


def confirm(arguments: argparse.Namespace, consequences: Iterable[str]) -> None:
    """Print the consequences and ask for consent, unless --yes is given.

    Raises CommandError if the user does not consent: with exit code 2 if there is no terminal to
    ask on, and 1 if the answer is no.
    """
    if arguments.yes:
        return
    for line in consequences:
        print(printable(line), file=sys.stderr)
    if not sys.stdin.isatty():
        raise CommandError(
            "nothing was changed: the command asks for confirmation, and the standard input is not "
            "a terminal; give --yes",
            _NEEDS_YES,
        )
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError('nothing was changed: the answer was not "y"')


def confirm_losses(
    arguments: argparse.Namespace, consequences: Callable[[], Iterable[str]]
) -> None:
    """Ask for consent as `confirm` does, but only if `consequences` returns lines.

    With --yes, `consequences` is not called.
    """
    if not arguments.yes and (lines := list(consequences())):
        confirm(arguments, lines)


def arriving_text(client: ApiClient, *path: str) -> str:
    """Return the rate of messages to a queue or virtual host: `14 messages/s arrive`.

    Return "" if no message arrives. `path` is the path of the object in the HTTP API. The rate is
    the difference of two readings of the object's counter. Raises CommandError.
    """
    before, began = _published(client.json("GET", *path)), time.monotonic()
    time.sleep(_RATE_SECONDS)
    came = _published(client.json("GET", *path)) - before
    if came <= 0:
        return ""
    return f"{rate_text(came / (time.monotonic() - began), 'message')} arrive"


def _published(row: dict[str, Any]) -> int:
    return int(row.get("message_stats", {}).get("publish", 0))
