"""The answer to `POST /api/route/try` and `trellis route --add, --remove`.

The request names bindings to add or to remove, and queues, exchanges and sessions to delete. The
answer says which queues and sessions would have got more or fewer messages of the last hour.
Nothing in the broker changes.

The answer is a document with a head, and lists of rows named by SECTIONS. The rows are made in
slices: the iterator yields None whenever other work may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.errors import NotFound, PreconditionFailed
from broker.names import shown
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.binding_trial import CHANGES_MAX, BindingTrial, DestinationEffect
from broker.routing.changed_bindings import BindingChange
from broker.routing.exchanges import Exchange, is_topic
from broker.routing.topic_history import HistorySum, TopicHistory
from broker.vhost.vhost import VirtualHost
from matching.grammar import swap
from trellis.monitoring.route_question import EXCHANGE_KIND, SESSION
from trellis.monitoring.route_rows import printable_key

Row = dict[str, Any]
#: The sections of an answer, in the order of its rows.
SECTIONS: Final = ("changes", "queues", "topics_changed")
GAINS, LOSES = "gains", "loses"
#: Returns the session of a client identifier in a virtual host; None if there is none.
FindSession = Callable[[str], Destination | None]


class ChangedBinding(msgspec.Struct, forbid_unknown_fields=True):
    """A binding that a trial adds or removes, as it stands in the JSON of a request."""

    change: str
    source: str
    destination: str
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = {}


class DeletedObject(msgspec.Struct, forbid_unknown_fields=True):
    """A queue, an exchange or a session that a trial deletes, as it stands in a request's JSON."""

    type: str
    name: str


class TrialAnswer:
    """The answer to one trial of changed bindings, on the topics of the last hour (`history`).

    `deleted` are queues, exchanges and sessions that the trial deletes. `find_session` returns the
    session of a client identifier. The constructor raises NotFound or PreconditionFailed if a
    change cannot be tried.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        changes: Sequence[ChangedBinding],
        history: TopicHistory,
        deleted: Sequence[DeletedObject],
        find_session: FindSession,
    ) -> None:
        if not 0 < len(changes) + len(deleted) <= CHANGES_MAX:
            raise PreconditionFailed(
                f"a trial must have 1 to {CHANGES_MAX} changed bindings or deleted objects, not "
                f"{len(changes) + len(deleted)}"
            )
        self._vhost = vhost
        self._sum = HistorySum(history)
        scope = vhost.declarations.planner.scope
        binding_changes = [_change_of(vhost, change) for change in changes]
        gone = [_object_of(vhost, one, find_session) for one in deleted]
        self._trial = BindingTrial(vhost.name, scope, binding_changes, self._sum, gone)
        #: The fields of the answer before its sections. `rows` adds most of them.
        self.head: Row = {
            "vhost": vhost.name,
            "since": int(self._sum.since),
            "unremembered": self._sum.left_out,
        }

    def rows(self) -> Iterator[tuple[str, Row] | None]:
        """Yield (section, row) for each row of the answer, and None between two slices of work.

        `head` is complete before the first row.
        """
        trial = self._trial
        for _ in trial.steps():
            yield None
        self.head |= {
            "topics": trial.topics,
            "topics_known": trial.topics_known,
            "messages": trial.messages,
            "complete": trial.complete,
            "left_out": trial.left_out,
            "by_headers": trial.by_headers,
            "estimated": trial.estimated,
            "newly_unroutable": trial.newly_unroutable,
            "newly_routed": trial.newly_routed,
        }
        for change in trial.changes:
            yield "changes", self._change_row(change)
        # Of effects on equally many messages, losses come before gains.
        effects = sorted(trial.effects.values(), key=lambda one: (-one.messages, one.gains))
        for effect in effects:
            yield (
                "queues",
                self._ends(effect) | {"topics": effect.topics, "messages": effect.messages},
            )
        for effect in effects:
            for topic in sorted(effect.largest, reverse=True):
                exchange = self._vhost.exchanges.get(topic.exchange)
                yield (
                    "topics_changed",
                    self._ends(effect)
                    | {
                        "exchange": topic.exchange,
                        "routing_key": printable_key(topic.key),
                        "topic": ""
                        if exchange is None or not is_topic(exchange)
                        else printable_key(swap(topic.key)),
                        "messages": topic.messages,
                    },
                )

    def _change_row(self, change: BindingChange) -> Row:
        target = change.binding.destination
        return {
            "change": "add" if change.added else "remove",
            "source": change.exchange.name,
            "routing_key": printable_key(change.binding.key),
            "destination": target.name,
            "destination_type": self._kind(target),
            "arguments": dict(change.binding.arguments),
            "topics": change.topics,
            "messages": change.messages,
        }

    def _ends(self, effect: DestinationEffect) -> Row:
        target = effect.destination
        return {
            "name": target.name,
            "type": self._kind(target),
            "effect": GAINS if effect.gains else LOSES,
        }

    @staticmethod
    def _kind(target: Destination) -> str:
        if isinstance(target, Exchange):
            return EXCHANGE_KIND
        return "queue" if isinstance(target, Queue) else SESSION


def changes_of(body: Mapping[str, Any]) -> list[ChangedBinding]:
    """Return the bindings in the field `changes` of a request. Raises PreconditionFailed."""
    try:
        given = body.get("changes")
        if given is None and "deleted" in body:
            return []
        return msgspec.convert(given, list[ChangedBinding])
    except msgspec.ValidationError as error:
        raise PreconditionFailed(
            f"the field 'changes' must be a list of bindings to add or remove: {error}"
        ) from None


def deleted_of(body: Mapping[str, Any]) -> list[DeletedObject]:
    """Return the objects in the field `deleted` of a request. Raises PreconditionFailed."""
    try:
        return msgspec.convert(body.get("deleted", []), list[DeletedObject])
    except msgspec.ValidationError as error:
        raise PreconditionFailed(
            f"the field 'deleted' must be a list of objects to delete: {error}"
        ) from None


def _object_of(vhost: VirtualHost, row: DeletedObject, find_session: FindSession) -> Destination:
    """Return the queue, the exchange or the session that a request deletes.

    Raises NotFound if there is none, and PreconditionFailed for another type of object.
    """
    if row.type == "exchange":
        return vhost.exchange(row.name)
    if row.type not in ("queue", SESSION):
        raise PreconditionFailed(
            f"the 'type' of an object to delete must be queue, exchange or session, not "
            f"'{shown(row.type)}'"
        )
    destination = vhost.queues.get(row.name) if row.type == "queue" else find_session(row.name)
    if destination is None:
        raise NotFound(f"there is no {row.type} '{shown(row.name)}' in vhost '{vhost.name}'")
    return destination


def _change_of(vhost: VirtualHost, row: ChangedBinding) -> BindingChange:
    if row.change not in ("add", "remove"):
        raise PreconditionFailed(
            f"the field 'change' must be add or remove, not '{shown(row.change)}'"
        )
    if row.destination_type not in ("queue", "exchange"):
        raise PreconditionFailed(
            "the field 'destination_type' must be queue or exchange, not "
            f"'{shown(row.destination_type)}'"
        )
    exchange = vhost.exchange("" if row.source == "amq.default" else row.source)
    target: Destination = (
        vhost.exchange(row.destination)
        if row.destination_type == "exchange"
        else vhost.queue(row.destination)
    )
    binding = Binding(row.routing_key, target, 0, row.arguments)
    return BindingChange(row.change == "add", exchange, binding)
