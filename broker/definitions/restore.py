"""The restore when a broker starts, after the store was opened: definitions, then messages.

    definitions --> exchanges, queues, sessions --> bindings and subscriptions --> messages

A definition that is invalid now (a matcher that is no longer allowed, an argument that a newer
version refuses) is reported, and stays in the store. A later start restores the definition if it is
valid then.
"""

from __future__ import annotations

from array import array
from typing import Final

from broker.broker import Broker
from broker.definitions.session_restorer import Definition, SessionRestorer
from broker.errors import BrokerError, PreconditionFailed
from broker.queues.arguments import UNCHECKED_BEFORE, QueueArguments
from broker.queues.delivery_window import RestoredDeliveries
from broker.queues.destination import Destination
from broker.queues.policies import policy_of
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.subscriber import Subscriber
from broker.store.entries import Defined, scope_parts
from broker.store.log_reader import LogReader
from broker.store.opening import OpenedStore
from broker.store.renaming import has_invalid_name
from broker.stream.queue import StreamQueue
from broker.vhost.options import options_of
from broker.vhost.vhost import VirtualHost
from matching.grammar import AMQP, MQTT

#: Kinds of definitions that are restored first, in this order: a queue is created with the policies
#: of its virtual host, a user needs its role, and a permission needs its user. The numbers of
#: definitions do not ensure this order: a definition that was changed gets a new, higher number.
_FIRST: Final = ("vhost", "policy", "parameter", "role", "user")
#: The positions of an inbox without messages: shared, and never changed.
_NO_POSITIONS: Final[array[int]] = array("q")
_GRAMMARS: Final = {grammar.name: grammar for grammar in (AMQP, MQTT)}


class RefusedDefinition:
    """A definition that was not restored, or was restored without some arguments, and the reason.

    If a queue or session is refused, its messages stay in the store.
    """

    def __init__(self, number: int, entry: Defined, reason: str) -> None:
        self.number = number
        self.vhost = entry.vhost
        self.kind = entry.kind
        self.name = entry.name
        self.reason = reason


class RestoreReport:
    """The result of a restore: counts of restored objects by kind, and the refused definitions."""

    def __init__(self) -> None:
        self.restored: dict[str, int] = {}
        self.refused: list[RefusedDefinition] = []
        #: Definitions of queues that were restored without some arguments, and the reasons.
        self.adapted: list[RefusedDefinition] = []
        #: Number of message copies that were restored.
        self.copies = 0
        #: Number of message copies that were not restored, because their queue was refused.
        self.orphaned = 0
        #: Number of retained messages that were restored.
        self.retained = 0


def restore_broker(broker: Broker, opened: OpenedStore, sessions: SessionRestorer) -> RestoreReport:
    """Restore all definitions and messages of a data directory, and return a report."""
    restoring = DefinitionsRestore(broker, sessions)
    # The sort keeps the order of the numbers among definitions of equal rank.
    for number, entry in sorted(opened.definitions, key=_rank):
        restoring.add(number, entry)
    restoring.restore_messages(opened)
    sessions.finish_restore()
    for vhost in broker.vhosts.values():
        vhost.declarations.journals.record_topology(True)
    return restoring.report


def _rank(numbered: tuple[int, Defined]) -> int:
    kind = numbered[1].kind
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


class DefinitionsRestore:
    """A restore in progress.

    `_by_number` holds the restored exchanges, queues and sessions, because a stored binding names
    its source and its destination by number.
    """

    def __init__(self, broker: Broker, sessions: SessionRestorer) -> None:
        self.report = RestoreReport()
        self._broker = broker
        self._sessions = sessions
        self._by_number: dict[tuple[str, int], Destination] = {}
        for vhost in broker.vhosts.values():
            self._add_predeclared(vhost)

    def _add_predeclared(self, vhost: VirtualHost) -> None:
        """Enter the predeclared exchanges of a virtual host in `_by_number`."""
        for exchange in vhost.exchanges.values():
            self._by_number[vhost.name, int(exchange.number)] = exchange

    def add(self, number: int, entry: Defined) -> None:
        """Restore the definition with this number in the store, or report why it is refused."""
        report = self.report
        try:
            self._restore(number, entry)
        except BrokerError as error:
            report.refused.append(RefusedDefinition(number, entry, str(error)))
        else:
            report.restored[entry.kind] = report.restored.get(entry.kind, 0) + 1

    def restore_messages(self, opened: OpenedStore) -> None:
        """Restore the messages of queues and sessions, and the retained messages."""
        store, survivors, report = opened.store, opened.survivors, self.report
        pubrec_received = survivors.pubrec_received_by_queue()
        held = survivors.copies.by_queue()
        counts = survivors.counts_by_queue()
        for vhost in self._broker.vhosts.values():
            copies = 0
            for queue in [
                *vhost.queues.values(),
                *vhost.delays.values(),
                *vhost.histories.values(),
            ]:
                positions = held.pop(queue.number, None)
                if isinstance(queue, StreamQueue):
                    # Count the rows of the stream, and the rows that retention removed when the
                    # stream was opened.
                    copies += int(queue.depth) + sum(queue.fates())
                elif positions is not None:
                    copies += len(positions)
                    queue.restore_deliveries(
                        RestoredDeliveries(
                            survivors.marks_of(queue.number), counts.get(queue.number, {})
                        )
                    )
                    queue.restore(positions, 1)
            for session in vhost.subscribers:
                inbox = session.inbox
                positions = held.pop(inbox.number, _NO_POSITIONS)
                copies += len(positions)
                self._sessions.restore_inbox(
                    session, store, positions, pubrec_received.get(inbox.number, set())
                )
                if inbox.number in survivors.held_packet_ids:
                    self._sessions.restore_received(
                        session, list(survivors.held_packet_ids[inbox.number])
                    )
            vhost.internal.count_copies(copies, 0)
            report.copies += copies
        report.orphaned = sum(len(positions) for positions in held.values())
        queues = [
            (entry.vhost, entry.name) for _, entry in opened.definitions if entry.kind == "queue"
        ]
        self._broker.streams.remove_deleted(queues, survivors.known_number())
        for (scope, producer), sequence in store.sequences.items():
            name, owner = scope_parts(scope)
            if name in self._broker.vhosts:
                self._broker.vhosts[name].producers.restore(owner, producer, sequence)
        reader = LogReader(store.log)
        for (name, _), position in sorted(survivors.retained.items(), key=_position):
            message = store.read_retained(reader, position)
            if message is not None and name in self._broker.vhosts:
                self._broker.vhosts[name].retained.restore(message, position)
                report.retained += 1

    def _restore(self, number: int, entry: Defined) -> None:
        kind, name, definition = entry.kind, entry.name, entry.definition
        vhost = self._broker.vhosts.get(entry.vhost)
        if vhost is None:
            if kind != "vhost":
                raise PreconditionFailed(f"there is no vhost '{entry.vhost}'")
            vhost = self._broker.add_vhost(entry.vhost)
            self._add_predeclared(vhost)
        if kind == "vhost" and definition:
            vhost.options = options_of(entry.vhost, definition)
        if has_invalid_name(entry):
            raise PreconditionFailed(
                "the object's name is not valid UTF-8: stop the broker and run `trellis store "
                "repair`, which renames the object"
            )
        if kind == "exchange":
            if name in vhost.exchanges:
                raise PreconditionFailed(
                    f"exchange '{name}' in vhost '{vhost.name}' exists already"
                )
            options = ExchangeOptions(
                True,
                _flag(definition, "auto_delete"),
                _flag(definition, "internal"),
                _table(definition, "arguments"),
            )
            self._by_number[vhost.name, number] = vhost.declarations.add_exchange(
                name, _text(definition, "type"), options, number
            )
        elif kind == "queue":
            arguments = _table(definition, "arguments")
            queue_arguments = self._queue_arguments(vhost, number, entry, arguments)
            self._by_number[vhost.name, number] = vhost.declarations.add_queue(
                name, True, _flag(definition, "auto_delete"), queue_arguments, number
            )
        elif kind == "session":
            self._by_number[vhost.name, number] = self._sessions.restore(
                vhost, name, number, definition
            )
        elif kind in ("binding", "subscription"):
            self._bind(vhost, definition)
        elif kind == "policy":
            vhost.applied_policies.add_policy(policy_of(vhost.name, name, definition))
        elif kind == "parameter":
            vhost.applied_policies.add_parameter(
                _text(definition, "component"), _text(definition, "name"), definition.get("value")
            )
        elif kind == "role":
            self._broker.users.roles.add(name, definition)
        elif kind == "user":
            self._broker.users.add(name, definition)
        elif kind == "permission":
            self._broker.users.add_permission(vhost.name, name, definition)
        elif kind != "vhost":
            raise PreconditionFailed(f"the definition has the unknown kind '{kind}'")

    def _queue_arguments(
        self, vhost: VirtualHost, number: int, entry: Defined, arguments: dict[str, object]
    ) -> QueueArguments:
        """Return the checked arguments of a stored queue.

        If `arguments` are invalid, leave out the arguments in UNCHECKED_BEFORE, which earlier
        versions stored unchecked, and report the definition as adapted. Raises PreconditionFailed
        if the remaining arguments are invalid, too.
        """
        name, policies = entry.name, vhost.policies
        try:
            return QueueArguments(name, vhost.name, arguments, policies.arguments(name, arguments))
        except BrokerError as error:
            valid = {key: arguments[key] for key in arguments if key not in UNCHECKED_BEFORE}
            policy = policies.arguments(name, valid)
            restored = QueueArguments(name, vhost.name, valid, policy, True)
            if len(valid) < len(arguments):
                self.report.adapted.append(RefusedDefinition(number, entry, str(error)))
            return restored

    def _bind(self, vhost: VirtualHost, definition: Definition) -> None:
        source = self._destination(vhost, definition, "source")
        destination = self._destination(vhost, definition, "destination")
        if not isinstance(source, Exchange):
            raise PreconditionFailed(f"the binding's source '{source.name}' is not an exchange")
        grammar = _GRAMMARS.get(_text(definition, "grammar"))
        if grammar is None:
            raise PreconditionFailed(
                f"the binding has the unknown grammar {definition['grammar']!r}"
            )
        binding = Binding(
            _text(definition, "key"),
            destination,
            _number(definition, "assurance"),
            _table(definition, "arguments"),
            grammar,
        )
        vhost.bindings.add(source, binding)
        if isinstance(destination, Subscriber):
            self._sessions.restore_subscription(destination, binding)

    def _destination(self, vhost: VirtualHost, definition: Definition, field: str) -> Destination:
        number = _number(definition, field)
        end = self._by_number.get((vhost.name, number))
        if end is None:
            raise PreconditionFailed(f"the binding's {field}, object {number}, does not exist")
        return end


def _position(retained: tuple[tuple[str, str], int]) -> int:
    return retained[1]


def _flag(definition: Definition, field: str) -> bool:
    value = definition.get(field)
    if not isinstance(value, bool):
        raise _invalid(field, value)
    return value


def _number(definition: Definition, field: str) -> int:
    value = definition.get(field)
    if not isinstance(value, int):
        raise _invalid(field, value)
    return value


def _text(definition: Definition, field: str) -> str:
    value = definition.get(field)
    if not isinstance(value, str):
        raise _invalid(field, value)
    return value


def _table(definition: Definition, field: str) -> dict[str, object]:
    value = definition.get(field)
    if not isinstance(value, dict):
        raise _invalid(field, value)
    return value


def _invalid(field: str, value: object) -> PreconditionFailed:
    return PreconditionFailed(f"the definition's field '{field}' has the invalid value {value!r}")
