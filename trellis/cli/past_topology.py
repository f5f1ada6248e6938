"""The destinations of past messages, from the stream `$topology` of a running broker.

The stream `$topology` has a row for each change of an exchange, queue, binding or subscription. The
rows up to the time of a message give the objects that existed then. The exchanges, queues and
bindings are imported into a broker in memory, which finds the destinations as the real broker did.
The broker in memory has no MQTT sessions, so this module compares the subscriptions with the
message one by one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from broker.definitions.trial import TrialImport
from broker.routing.topology_stream import TOPOLOGY
from matching import AMQP, MQTT
from matching.grammar import swap
from protocols.mqtt.codec.topics import EXCHANGE
from trellis.auth.passwords import check_hash
from trellis.cli.api_client import ApiRefused
from trellis.cli.parsing import CommandError
from trellis.cli.routes_in_memory import RoutesInMemory
from trellis.cli.stream_source import StreamSource
from trellis.monitoring.route_question import RouteQuestion

Facts = dict[str, Any]
#: Grammars of the binding keys in the rows of `$topology`, by name.
_GRAMMARS: Final = {grammar.name: grammar for grammar in (AMQP, MQTT)}


class PastTopology:
    """The exchanges, queues, bindings and subscriptions of one virtual host at a time in the past.

    The time can only move forwards (`move_to`), because the rows of `$topology` are read once. The
    methods raise CommandError.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._vhost: str = arguments.vhost
        values = vars(arguments) | {"queue": TOPOLOGY, "first": None, "end": None}
        self._rows = _rows(StreamSource(argparse.Namespace(**values)))
        self._next = next(self._rows, None)
        self._names: dict[tuple[str, str], Facts] = {}
        self._bindings: dict[tuple[str, ...], Facts] = {}
        #: True if a complete snapshot was read, so that all objects are known.
        self._complete = False
        #: The broker in memory with the objects of the present time of `move_to`; None if the
        #: objects have changed since this broker was made.
        self._routes: RoutesInMemory | None = None

    def move_to(self, at: int) -> bool:
        """Move forwards to the time `at`, in microseconds since 1970.

        Return True if the rows up to this time contain a complete snapshot of all objects. Return
        False if bindings may be missing.
        """
        while self._next is not None and self._next[0] <= at:
            _, event, facts = self._next
            self._apply(event, facts)
            self._next = next(self._rows, None)
        return self._complete

    def destinations(
        self, exchange: str, key: str, headers: dict[str, Any]
    ) -> list[tuple[str, str]]:
        """Return the destinations of a message at the time of the last call of `move_to`.

        A pair has the name of a queue or session, and a text with the binding or subscription by
        which the message reached this destination.
        """
        if self._routes is None:
            self._routes = RoutesInMemory(self._import())
        try:
            answer = self._routes.ask(self._vhost, RouteQuestion(exchange, key, headers))
        except ApiRefused:
            return []  # The exchange was deleted before its message was recorded.
        pairs = [
            (row["destination"], _reason(row))
            for row in answer["bindings"]
            if row["destination_type"] != "exchange"
        ]
        if any(row["name"] == EXCHANGE for row in answer["exchanges"]):
            pairs += self._sessions(key)
        return pairs

    def _sessions(self, key: str) -> Iterator[tuple[str, str]]:
        for facts in self._bindings.values():
            if facts["destination_type"] == "session":
                grammar = _GRAMMARS[facts["grammar"]]
                topic = swap(key) if grammar is MQTT else key
                if grammar.matches(facts["routing_key"], topic):
                    yield facts["destination"], f"by subscription '{facts['routing_key']}'"

    def _apply(self, event: str, facts: Facts) -> None:
        if event == "snapshot":
            if facts.get("restarted") or not self._complete:
                self._names, self._bindings, self._complete = {}, {}, False
        elif event == "complete":
            self._complete = True
        elif event in ("declare", "delete"):
            name = (facts["kind"], facts["name"])
            self._names.pop(name, None)
            if event == "declare":
                self._names[name] = facts
        elif event in ("bind", "subscribe", "unbind", "unsubscribe"):
            ends = ("source", "destination_type", "destination", "routing_key")
            binding = (
                *(str(facts[field]) for field in ends),
                json.dumps(facts["arguments"], sort_keys=True),
            )
            self._bindings.pop(binding, None)
            if event in ("bind", "subscribe"):
                self._bindings[binding] = facts
        else:
            return  # Connections have no effect on routes.
        self._routes = None

    def _import(self) -> TrialImport:
        """Return a broker in memory with the exchanges, queues and bindings of the past time."""
        trial = TrialImport(check_hash)
        trial.take("vhosts", {"name": self._vhost})
        common = {"vhost": self._vhost, "durable": True, "auto_delete": False}
        for (kind, name), facts in self._names.items():
            if kind != "exchange":
                trial.take("queues", common | {"name": name, "arguments": {}})
                continue
            alternate = facts.get("alternate")
            arguments = {} if alternate is None else {"alternate-exchange": alternate}
            row = {"name": name, "type": facts.get("type"), "arguments": arguments}
            trial.take("exchanges", common | {"internal": False} | row)
        for facts in self._bindings.values():
            kind = facts["destination_type"]
            if kind != "session" and facts["source"]:
                row = {
                    field: facts[field]
                    for field in ("source", "destination", "routing_key", "arguments")
                }
                kind = "exchange" if kind == "exchange" else "queue"
                trial.take("bindings", row | {"vhost": self._vhost, "destination_type": kind})
        return trial


def _reason(row: Facts) -> str:
    """Return the reason for a destination, as text: the binding that a row describes."""
    if not row["exchange"]:
        return "by the name of the queue"
    return f"by binding '{row['binding_key']}' of '{row['exchange']}'"


def _rows(source: StreamSource) -> Iterator[tuple[int, str, Facts]]:
    """Yield (time, event, facts) of each row of `$topology`.

    The time is in microseconds since 1970, the event is a word such as `bind`, and the facts are
    the fields of the changed object.

    If the broker has no such stream, there are no rows. Raises CommandError.
    """
    try:
        for _, batch, first, end in source.batches():
            for row in range(first, end):
                at, event, body = (
                    batch.value(column, row) for column in ("published_at", "topic", "body")
                )
                assert isinstance(at, int) and isinstance(event, str) and isinstance(body, bytes)
                yield at, event, json.loads(body)
    except ApiRefused as error:
        if error.status != 404:
            raise CommandError(str(error)) from None
