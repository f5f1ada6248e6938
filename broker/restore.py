"""From stored definitions to a living broker: the second half of a start.

    (number, Defined) in the order of numbers --> exchanges, queues, sessions --> what leads from one to another

What does not fit any more (a matcher that is not allowed now, an argument that is refused now) is reported, and stays
in the store: when it fits again, it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mypy_extensions import i64

from broker.binding import Binding
from broker.core import Broker
from broker.destination import Destination
from broker.errors import BrokerError, PreconditionFailed
from broker.exchange import Exchange
from broker.exchange.base import Options
from broker.route import Listener
from broker.store.contract import Defined
from broker.terms import Terms
from broker.vhost import VirtualHost
from matching.grammar import AMQP, MQTT

Definition = Mapping[str, object]

_GRAMMARS: Final = {grammar.name: grammar for grammar in (AMQP, MQTT)}


class Keeper:
    """The role of the front end that sessions belong to."""

    def restore(self, vhost: VirtualHost, name: str, number: i64, definition: Definition) -> Listener:
        """A session that was there before: nobody is connected to it. Raises BrokerError."""
        raise NotImplementedError

    def restore_subscription(self, listener: Listener, binding: Binding) -> None:
        """It had this subscription, which is bound already."""
        raise NotImplementedError

    def restored(self) -> None:
        """That was all."""
        raise NotImplementedError


class Refused:
    """A definition that does not fit any more. The messages of a queue or session that is refused are still wanted."""

    def __init__(self, number: int, entry: Defined, reason: str) -> None:
        self.number = number
        self.vhost = entry.vhost
        self.kind = entry.kind
        self.name = entry.name
        self.reason = reason


class Report:
    """What came of it: how many of each kind are back, and what is not."""

    def __init__(self) -> None:
        self.restored: dict[str, int] = {}
        self.refused: list[Refused] = []


def restore(broker: Broker, definitions: Iterable[tuple[int, Defined]], keeper: Keeper) -> Report:
    """Build what the definitions say, in a broker that nobody has used yet; `definitions` come in the order of their
    numbers, which are positions, and the store has gone past them. The keeper may append to the store."""
    restoring = Restoring(broker, keeper)
    for number, entry in definitions:
        restoring.add(number, entry)
    keeper.restored()
    return restoring.report


class Restoring:
    """Knows by their numbers what is back, for bindings know their ends by these."""

    def __init__(self, broker: Broker, keeper: Keeper) -> None:
        self.report = Report()
        self._broker = broker
        self._keeper = keeper
        self._ends: dict[tuple[str, int], Destination] = {}
        for vhost in broker.vhosts.values():
            self._know(vhost)

    def _know(self, vhost: VirtualHost) -> None:
        """What is there from the beginning."""
        for exchange in vhost.exchanges.values():
            self._ends[vhost.name, int(exchange.number)] = exchange

    def add(self, number: int, entry: Defined) -> None:
        report = self.report
        try:
            self._restore(number, entry)
        except BrokerError as error:
            report.refused.append(Refused(number, entry, str(error)))
        else:
            report.restored[entry.kind] = report.restored.get(entry.kind, 0) + 1

    def _restore(self, number: int, entry: Defined) -> None:
        kind, name, definition = entry.kind, entry.name, entry.definition
        vhost = self._broker.vhosts.get(entry.vhost)
        if vhost is None:
            if kind != "vhost":
                raise PreconditionFailed(f"there is no vhost '{entry.vhost}'")
            vhost = self._broker.add_vhost(entry.vhost)
            self._know(vhost)
        if kind == "exchange":
            if name in vhost.exchanges:
                raise PreconditionFailed(f"there is an exchange '{name}' in vhost '{vhost.name}' already")
            options = Options(True, _flag(definition, "auto_delete"), _flag(definition, "internal"), _table(definition, "arguments"))
            self._ends[vhost.name, number] = vhost.add_exchange(name, _text(definition, "type"), options, number)
        elif kind == "queue":
            terms = Terms(name, vhost.name, _table(definition, "arguments"))
            self._ends[vhost.name, number] = vhost.add_queue(name, True, _flag(definition, "auto_delete"), terms, number)
        elif kind == "session":
            self._ends[vhost.name, number] = self._keeper.restore(vhost, name, number, definition)
        elif kind in ("binding", "subscription"):
            self._bind(vhost, definition)
        elif kind != "vhost":
            raise PreconditionFailed(f"nobody knows what a {kind} is")

    def _bind(self, vhost: VirtualHost, definition: Definition) -> None:
        source = self._end(vhost, definition, "source")
        destination = self._end(vhost, definition, "destination")
        if not isinstance(source, Exchange):
            raise PreconditionFailed(f"its source, '{source.name}', is no exchange")
        grammar = _GRAMMARS.get(_text(definition, "grammar"))
        if grammar is None:
            raise PreconditionFailed(f"nobody knows its grammar, {definition['grammar']!r}")
        binding = Binding(_text(definition, "key"), destination, _number(definition, "assurance"), _table(definition, "arguments"), grammar)
        vhost.add_binding(source, binding)
        if isinstance(destination, Listener):
            self._keeper.restore_subscription(destination, binding)

    def _end(self, vhost: VirtualHost, definition: Definition, field: str) -> Destination:
        number = _number(definition, field)
        end = self._ends.get((vhost.name, number))
        if end is None:
            raise PreconditionFailed(f"its {field}, number {number}, is not there")
        return end


def _flag(definition: Definition, field: str) -> bool:
    value = definition.get(field)
    if not isinstance(value, bool):
        raise _odd(field, value)
    return value


def _number(definition: Definition, field: str) -> int:
    value = definition.get(field)
    if not isinstance(value, int):
        raise _odd(field, value)
    return value


def _text(definition: Definition, field: str) -> str:
    value = definition.get(field)
    if not isinstance(value, str):
        raise _odd(field, value)
    return value


def _table(definition: Definition, field: str) -> dict[str, object]:
    value = definition.get(field)
    if not isinstance(value, dict):
        raise _odd(field, value)
    return value


def _odd(field: str, value: object) -> PreconditionFailed:
    return PreconditionFailed(f"its {field} is {value!r}")
