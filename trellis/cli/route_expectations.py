"""Expectations about routes, which `trellis route --expect FILE` checks: tests of a topology.

    [[expect]]
    exchange = "sensors"
    key = "sensors.kitchen.temp"
    queues = ["temps"]            # must receive the message
    not_queues = ["alarms"]       # must not receive it

Further fields: `mqtt` (a topic, instead of exchange and key), `vhost`, `headers`, `user`,
`client_id`, and `name`, which stands in the line of the result. An MQTT session is named by its
client identifier. A JSON file has the same fields, as an object with the list `expect`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from trellis.cli.api_client import ApiRefused
from trellis.cli.parsing import CommandError
from trellis.cli.route_text import message_text, near_miss_text
from trellis.monitoring.route_question import INTERNAL_KIND, RouteQuestion

#: Kinds of verdicts of a queue that does not receive the message.
_NOT_RECEIVED: Final = ("refuses", "drops", "cannot_represent")
#: Largest number of near misses in the line of a failed expectation.
_NEAR_MISSES: Final = 3
#: HTTP statuses of a question that the broker cannot answer in its present state, because an
#: exchange does not exist, for example: only this expectation fails.
_FAILED_STATUSES: Final = (400, 404)

Ask = Callable[[str, RouteQuestion], dict[str, Any]]


class Expectation(RouteQuestion, forbid_unknown_fields=True):
    """A message, the queues that must receive it, and the queues that must not."""

    queues: list[str] = msgspec.field(default_factory=list)
    not_queues: list[str] = msgspec.field(default_factory=list)
    vhost: str = "/"
    name: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError unless the expectation names one message and at least one queue."""
        if (self.mqtt is None) == (self.exchange == "" and self.key == ""):
            raise ValueError("an expectation needs either `exchange` and `key`, or `mqtt`")
        if not self.queues and not self.not_queues:
            raise ValueError("an expectation needs at least one queue in `queues` or `not_queues`")


class _Expectations(msgspec.Struct, forbid_unknown_fields=True):
    expect: list[Expectation]


class ExpectationResult:
    """The result of checking an expectation; `problems` is empty if the expectation holds."""

    def __init__(self, name: str, message: str, problems: list[str]) -> None:
        self.name = name
        self.message = message
        self.problems = problems

    @property
    def passed(self) -> bool:
        """True if the expectation holds."""
        return not self.problems

    @property
    def line(self) -> str:
        """The result in one line, for people."""
        name = f"{self.name}: " if self.name else ""
        if self.problems:
            return f"FAILED  {name}{self.message}: {'; '.join(self.problems)}"
        return f"ok      {name}{self.message}"

    def row(self) -> dict[str, Any]:
        """Return the result as an object of JSON, for programs."""
        return {
            "name": self.name,
            "message": self.message,
            "passed": self.passed,
            "problems": self.problems,
        }


def read_expectations(path: str) -> list[Expectation]:
    """Return the expectations in a TOML or JSON file; - is standard input. Raises CommandError."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", 2) from None
    decode = msgspec.json.decode if data.lstrip()[:1] == b"{" else msgspec.toml.decode
    try:
        expectations: list[Expectation] = decode(data, type=_Expectations).expect
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        fields = ", ".join(Expectation.__struct_fields__)
        raise CommandError(
            f"{path} has no valid expectations: {error}; the fields of an expectation are {fields}",
            2,
        ) from None
    if not expectations:
        raise CommandError(f"{path} has no expectation: add a table [[expect]]", 2)
    return expectations


def result_of(expectation: Expectation, ask: Ask) -> ExpectationResult:
    """Ask for the route of an expectation's message, and compare the queues with the expectation.

    Raises CommandError.
    """
    try:
        answer = ask(expectation.vhost, expectation)
    except ApiRefused as refusal:
        if refusal.status not in _FAILED_STATUSES:
            raise
        return ExpectationResult(expectation.name, _named(expectation), [str(refusal)])
    received = {
        row["name"]
        for row in answer["queues"]
        if not answer["refusal"]
        and row["verdict"] not in _NOT_RECEIVED
        and row["type"] != INTERNAL_KIND
    }
    problems = [
        _missing_reason(answer, queue) for queue in expectation.queues if queue not in received
    ]
    problems += [
        f"queue '{queue}' receives the message: {_binding_reason(answer, queue)}"
        for queue in expectation.not_queues
        if queue in received
    ]
    return ExpectationResult(expectation.name, message_text(answer), problems)


def _named(expectation: Expectation) -> str:
    if expectation.mqtt is not None:
        return f"topic '{expectation.mqtt}'"
    return f"exchange '{expectation.exchange or 'amq.default'}', key '{expectation.key}'"


def _missing_reason(answer: dict[str, Any], queue: str) -> str:
    """Return why a queue does not receive the message, with the near misses of the queue."""
    text = f"queue '{queue}' does not receive the message"
    if answer["refusal"]:
        return f"{text}: {answer['refusal']}"
    for row in answer["queues"]:
        if row["name"] == queue:
            return f"{text}: {row['verdict']}, {row['text']}"
    own = [row for row in answer["near_misses"] if row["destination"] == queue]
    near = own or answer["near_misses"]
    misses = ", ".join(near_miss_text(row) for row in near[:_NEAR_MISSES])
    return (
        f"{text}; near misses: {misses}" if misses else f"{text}: no binding to this queue matches"
    )


def _binding_reason(answer: dict[str, Any], queue: str) -> str:
    """Return the text about the binding by which a message reaches a queue."""
    for row in answer["bindings"]:
        if row["destination"] == queue:
            exchange = row["exchange"] or "amq.default"
            return f"binding '{row['binding_key']}' of exchange '{exchange}': {row['reason']}"
    return "a journal records every message"
