"""Traces of past messages, for `trellis trace --journal`.

A journal has a row for each published message: exchange, routing key, user, headers, and the number
of queues and sessions that the message reached. The names of these queues and sessions are computed
from the stream `$topology`. A dead letter is published again with the header `x-death`, which names
the queues in which it died. A journal does not record what consumers did.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.stream.arrow import BatchView
from matching import AMQP, MQTT
from matching.grammar import InvalidPattern, swap
from trellis.cli.parsing import CommandError
from trellis.cli.past_topology import PastTopology
from trellis.cli.readable import count_text, size_text
from trellis.cli.stream_source import StreamSource

Row = dict[str, Any]
#: The column `protocol` of a message that the broker itself published.
BROKER: Final = "internal"
#: Columns of a journal that describe a publication.
_COLUMNS: Final = (
    "offset",
    "published_at",
    "exchange",
    "topic",
    "protocol",
    "publisher",
    "qos",
    "routed",
    "size",
    "message_id",
    "headers",
)


class PastTrace:
    """The steps of past messages, which the options of the command select from a journal.

    The rows have the same fields as the steps of a live trace. Raises CommandError.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._matches = _filter(arguments)
        self._topology = PastTopology(arguments)
        #: Message numbers by message_id: a dead letter gets the number of its original message.
        self._numbers: dict[str, int] = {}
        self._numbered = 0
        #: Number of messages whose destinations are not known.
        self.without_destinations = 0

    def steps(self) -> Iterator[Row]:
        """Yield the steps of all selected messages, in the order of the journal."""
        for row in self._rows():
            if self._matches(row):
                yield from self._life(row)

    def _rows(self) -> Iterator[Row]:
        arguments = self._arguments
        since = None if arguments.since is None else int(arguments.since * 1_000_000)
        until = None if arguments.until is None else int(arguments.until * 1_000_000)
        values = vars(arguments) | {"queue": arguments.journal, "first": None, "end": None}
        source = StreamSource(argparse.Namespace(**values))
        if since is not None:
            source.begin_with_segment_of(since)
        for _, batch, first, end in source.batches():
            for number in range(first, end):
                at = batch.value("published_at", number)
                assert isinstance(at, int)
                if until is not None and at > until:
                    return
                if since is None or at >= since:
                    yield _row(batch, number)

    def _life(self, row: Row) -> Iterator[Row]:
        number = self._number(row)
        headers = json.loads(row["headers"]) if row["headers"] else {}
        for death in reversed(headers.get("x-death") or ()):
            died = (
                f"{death.get('reason')}, {count_text(int(death.get('count', 1)), 'time')}; the "
                f"message came from exchange '{death.get('exchange') or 'amq.default'}'"
            )
            yield _step(row, number, "dead_lettered", str(death.get("queue", "")), died)
        yield _step(row, number, "published", row["exchange"] or "amq.default", _publication(row))
        if not row["routed"]:
            yield _step(row, number, "unroutable", "", "no queue and no session got the message")
            return
        yield _step(row, number, "routed", "", f"to {count_text(row['routed'], 'destination')}")
        if not self._topology.move_to(row["published_at"]):
            self.without_destinations += 1
            return
        for name, reason in self._topology.destinations(row["exchange"], row["topic"], headers):
            yield _step(row, number, "routed", name, reason)

    def _number(self, row: Row) -> int:
        """Return the number by which the trace names the message of a row: 1, 2, 3, ...

        Rows with the same message_id get the same number. So a dead letter with a message_id has
        the number of its original message.
        """
        if row["message_id"] in self._numbers:
            return self._numbers[row["message_id"]]
        self._numbered += 1
        if row["message_id"]:
            self._numbers[row["message_id"]] = self._numbered
        return self._numbered


def _row(batch: BatchView, number: int) -> Row:
    return {column: batch.value(column, number) for column in _COLUMNS}


def _step(row: Row, number: int, name: str, place: str, detail: str) -> Row:
    at = row["published_at"] / 1_000_000
    return {"time": at, "message": number, "step": name, "place": place, "detail": detail}


def _publication(row: Row) -> str:
    quality = ("transient", "persistent", "QoS 2")[row["qos"]]
    publisher = (
        "by the broker"  # such as a dead letter or a will
        if row["protocol"] == BROKER
        else f"by user '{row['publisher']}' over {row['protocol']}, {quality}"
    )
    identity = f", message_id '{row['message_id']}'" if row["message_id"] else ""
    return (
        f"key '{row['topic']}' {publisher}, {size_text(row['size'])}{identity}, "
        f"offset {row['offset']}"
    )


def _filter(arguments: argparse.Namespace) -> Callable[[Row], bool]:
    """Return a function that returns True for each row that the options of the command select.

    Raises CommandError.
    """
    for name in ("queue", "client"):
        if getattr(arguments, name) is not None:
            raise CommandError(
                f"--{name} cannot select past messages, because a journal does not record the "
                f"{name}; leave the option out",
                2,
            )
    pattern = arguments.topic if arguments.topic is not None else arguments.key
    grammar = MQTT if arguments.topic is not None else AMQP
    if pattern is not None:
        try:
            grammar.check(pattern)
        except InvalidPattern as error:
            raise CommandError(f"the filter of the trace is invalid: {error}", 2) from None
    exchange = "" if arguments.exchange == "amq.default" else arguments.exchange
    wanted = {
        "exchange": exchange,
        "publisher": arguments.publisher,
        "message_id": arguments.message_id,
    }
    equal = {column: value for column, value in wanted.items() if value is not None}

    def matches(row: Row) -> bool:
        if any(row[column] != value for column, value in equal.items()):
            return False
        if pattern is None:
            return True
        return grammar.matches(pattern, swap(row["topic"]) if grammar is MQTT else row["topic"])

    return matches
