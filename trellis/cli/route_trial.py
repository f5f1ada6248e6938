"""`trellis route --add, --remove`: tries changed bindings on the messages of the last hour.

The broker computes which queues would have got more or fewer of these messages, and changes nothing
(broker/routing/binding_trial.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from trellis.cli.api_client import ApiClient
from trellis.cli.consequences import header_lines
from trellis.cli.parsing import CommandError, Parser
from trellis.cli.readable import count_text, time_text
from trellis.cli.topology import arguments_of
from trellis.settings.errors import printable

#: The beginning of a DESTINATION that is an exchange.
_EXCHANGE: Final = "exchange:"


def add_arguments(command: Parser) -> None:
    """Add --add and --remove to `trellis route`: the bindings to try."""
    names = ("EXCHANGE KEY DESTINATION", "NAME=VALUE")
    for flag, verb in (("--add", "had"), ("--remove", "did not have")):
        command.add_argument(
            flag,
            dest="added" if flag == "--add" else "removed",
            action="append",
            nargs="+",
            default=[],
            metavar=names,
            help=f"show instead which queues would get other messages if EXCHANGE {verb} this "
            "binding; DESTINATION is a queue, or exchange:NAME; NAME=VALUE is an argument of the "
            "binding, such as x-match=any; may be repeated",
        )


def changes_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the bindings that --add and --remove name, as rows for `POST /api/route/try`.

    The field `change` of a row is "add" or "remove". Raises CommandError.
    """
    named = [("remove", words) for words in arguments.removed]
    named += [("add", words) for words in arguments.added]
    return [_change_of(change, words) for change, words in named]


def _change_of(change: str, words: list[str]) -> dict[str, Any]:
    """Return the JSON row of a change of one binding, for the request to the HTTP API.

    `change` is "add" or "remove"; `words` are the arguments after this flag: exchange, key,
    destination, arguments of the binding. Raises CommandError if an argument is missing.
    """
    if len(words) < 3:
        raise CommandError(
            f"--{change}: expected EXCHANGE KEY DESTINATION, got {len(words)} of these 3 arguments",
            2,
        )
    exchange, key, destination, *given = words
    row: dict[str, Any] = {
        "change": change,
        "source": "" if exchange == "amq.default" else exchange,
        "routing_key": key,
        "destination": destination.removeprefix(_EXCHANGE),
        "destination_type": "exchange" if destination.startswith(_EXCHANGE) else "queue",
    }
    if given:
        row["arguments"] = arguments_of(given, f"--{change}")
    return row


def print_trial(arguments: argparse.Namespace) -> int:
    """Print which queues would have got more or fewer messages with the changed bindings.

    The trial uses the messages of the last hour. Return 0, the exit code.
    """
    client = ApiClient(arguments)
    body = {"vhost": arguments.vhost, "changes": changes_of(arguments)}
    answer: dict[str, Any] = client.json("POST", "route", "try", body=body)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return 0
    for line in lines_of(answer, time.time()):
        print(printable(line))
    return 0


def lines_of(answer: dict[str, Any], now: float) -> Iterator[str]:
    """Yield the lines of text for an answer of `POST /api/route/try`.

    `now` is the present time in seconds since 1970.
    """
    ago = time_text(max(0.0, now - answer["since"]))
    tried = count_text(answer["topics"], "topic")
    messages = count_text(answer["messages"], "message")
    yield f"the trial used {tried} with {messages} of the last {ago}"
    if not answer["complete"]:
        known = count_text(answer["topics_known"], "topic")
        yield f"the broker ended the trial early: it did not try all {known} that it remembers"
    if answer["unremembered"]:
        left_out = count_text(answer["unremembered"], "message")
        yield f"the trial left out {left_out}, whose topics the broker does not remember"
    yield from header_lines(answer)
    yield ""
    for row in answer["changes"]:
        yield (
            f"{row['change']} binding '{row['routing_key']}' of '{row['source']}' to "
            f"{row['destination_type']} '{row['destination']}'{_arguments_text(row)}: matches "
            f"{count_text(row['topics'], 'topic')}, {count_text(row['messages'], 'message')}"
        )
    for row in answer["queues"]:
        yield ""
        yield (
            f"{row['type']} '{row['name']}' {row['effect']} "
            f"{count_text(row['messages'], 'message')} of {count_text(row['topics'], 'topic')}"
        )
        mine = [
            each
            for each in answer["topics_changed"]
            if all(each[field] == row[field] for field in ("type", "name", "effect"))
        ]
        for each in mine:
            yield f"  {each['messages']:,}  {each['exchange']}  {each['routing_key']}"
        if len(mine) < row["topics"]:
            yield f"  and {row['topics'] - len(mine):,} more topics"
    if not answer["queues"]:
        yield "no queue and no session gains or loses a message"
    if answer["left_out"]:
        yield f"queues that gain or lose messages and are not shown: {answer['left_out']:,}"
    if answer["newly_unroutable"]:
        yield f"messages that would reach no queue any more: {answer['newly_unroutable']:,}"
    if answer["newly_routed"]:
        yield f"messages that reach no queue now, and would reach one: {answer['newly_routed']:,}"


def _arguments_text(row: dict[str, Any]) -> str:
    """Return the arguments of a changed binding in parentheses; "" if there are none."""
    given = " ".join(f"{name}={value}" for name, value in row["arguments"].items())
    return f" ({given})" if given else ""
