"""The answer to `GET /api/route` and `trellis route`: where a message would go, and why.

The answer is a document with a head and rows in SECTIONS. The rows are made in slices: the iterator
yields None whenever other work may run. Nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker.access.identity import Identity
from broker.errors import BrokerError, NotFound
from broker.messages.cc_headers import parse_additional_keys
from broker.messages.message import topic_of
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import PARTLY, Binding
from broker.routing.exchanges import Exchange, is_topic
from broker.routing.explanation import MatchedBinding, RouteExplanation, WalkedExchange
from broker.routing.key_differences import TOPIC
from broker.routing.match_reasons import common_reason, reason_of
from broker.routing.matching_bindings import STEPS
from broker.routing.near_misses import NearMiss, NearMissSearch
from broker.routing.plan_search import SearchScope
from broker.routing.planner import NO_PLAN
from broker.routing.queue_verdicts import TAKES, UNREPRESENTABLE, verdict_of
from broker.routing.route import Route
from broker.routing.subscriber import Subscriber
from broker.vhost.background import kind_of
from broker.vhost.vhost import VirtualHost
from matching.grammar import swap
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.packets import MalformedPacket
from protocols.mqtt.codec.topics import EXCHANGE, RESERVED
from trellis.monitoring.route_question import (
    EXCHANGE_KIND,
    INTERNAL_KIND,
    SESSION,
    RouteQuestion,
)

Row = dict[str, Any]


class RouteAnswer:
    """The answer to a RouteQuestion in one virtual host: where the message would go, and why.

    `max_levels` is the largest number of levels of an MQTT topic. `identity_of` returns the
    identity of the user with a name, or None. The answer has at most `limit` rows for the matching
    bindings of each exchange, and at most `limit` rows for the queues with each verdict; all rows
    if `limit` is 0. The constructor raises NotFound if the exchange or the user does not exist,
    and PreconditionFailed if the question is invalid.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        question: RouteQuestion,
        identity_of: Callable[[str], Identity | None],
        max_levels: int,
        limit: int = 0,
    ) -> None:
        self._vhost = vhost
        self._limit = limit
        self._question = question
        self._max_levels = max_levels
        mqtt = question.mqtt
        self._exchange_name = question.exchange if mqtt is None else EXCHANGE
        self._key = question.key if mqtt is None else swap(mqtt)
        self._exchange = vhost.exchange(self._exchange_name)
        self._keys = [self._key, *parse_additional_keys(question.headers)]
        self._properties: dict[str, Any] = (
            {"headers": dict(question.headers)} if question.headers else {}
        )
        self._planner = vhost.declarations.planner
        # This search has a scope of its own, because the scope of the broker counts how often
        # searches for publications paused.
        self._scope = SearchScope(vhost.exchanges, vhost.queues, vhost.replies)
        self._identity: Identity | None = None
        if question.user is not None:
            self._identity = _in_vhost(question.user, question.client_id, vhost, identity_of)
        #: The fields of the answer before its sections. `rows` adds the last fields at its end.
        self.head = self._new_head()

    def _new_head(self) -> Row:
        question = self._question
        head: Row = {
            "vhost": self._vhost.name,
            "exchange": self._exchange_name,
            "type": self._exchange.kind,
            "routing_key": printable_key(self._key),
        }
        if question.headers:
            head["headers"] = question.headers
        if question.user is not None:
            head["user"] = question.user
        if question.mqtt is not None:
            head["topic"] = question.mqtt
            head["retained"] = self._vhost.retained.get(self._key) is not None
        head["invalid_topic"] = self._topic_fault()
        head["refusal"] = head["invalid_topic"] or self._refusal()
        head["publishers_blocked"] = self._vhost.alarmed
        return head

    def _topic_fault(self) -> str:
        """Return why no client can publish to the question's MQTT topic; "" if clients can.

        Also return "" if the question names no MQTT topic.
        """
        topic = self._question.mqtt
        if topic is None:
            return ""
        try:
            topic_name(topic)
        except MalformedPacket as error:
            return f"topic '{topic}' is not valid: {error}"
        if topic.split("/", 1)[0] in RESERVED:
            return f"topic '{topic}' is reserved: no client can publish to it"
        if topic.count("/") >= self._max_levels:
            return f"topic '{topic}' has more than {self._max_levels} levels (mqtt.max_levels)"
        return ""

    def _refusal(self) -> str:
        """Return why the broker refuses the user's message; "" if the broker accepts it.

        Also return "" if the question names no user.
        """
        question = self._question
        if question.user is None:
            return ""
        if self._identity is None:
            return (
                f"user '{question.user}' has no permissions in vhost '{self._vhost.name}': grant "
                "permissions with `trellis permissions set`"
            )
        routes = [Route(self._exchange_name, key, NO_PLAN) for key in self._keys]
        try:
            self._planner.admit(self._identity, self._exchange_name, routes)
        except BrokerError as error:
            return str(error)
        return ""

    def rows(self) -> Iterator[tuple[str, Row] | None]:
        """Yield (section, row) for each row of the answer, and None between two slices of work."""
        yield from self._rights()
        explanation = RouteExplanation(self._scope, self._exchange, self._keys, self._properties)
        yield from explanation.steps()
        for walked in explanation.walked:
            yield "exchanges", _exchange_row(walked)
        for name in explanation.missing:
            yield "exchanges", {"name": name, "type": "", "entered": "it does not exist"}
        for walked in explanation.walked:
            yield from self._bindings(walked, explanation.reached)
        yield from self._destinations(explanation)
        noun = TOPIC if self._question.mqtt is not None else "routing key"
        search = NearMissSearch(self._planner.scope, explanation, self._key, self._properties, noun)
        if not self.head["invalid_topic"]:  # No binding gets messages of an invalid topic.
            yield from search.steps()
            for miss in search.best():
                yield "near_misses", self._near_miss_row(miss)
        self.head["outdated"] = explanation.outdated
        self.head["examined"] = search.examined
        self.head["examined_all"] = search.complete

    def _rights(self) -> Iterator[tuple[str, Row] | None]:
        if self._identity is None:
            return
        name = self._exchange_name or "amq.default"
        for key in self._keys:
            topic = topic_of(key) if is_topic(self._exchange) else None
            for decision in self._identity.publish_decisions(name, key, topic):
                yield (
                    "rights",
                    {
                        "right": decision.right,
                        "rule": decision.rule,
                        "on": name if decision.right == "write permission" else printable_key(key),
                        "allows": decision.allows,
                    },
                )

    def _bindings(
        self, walked: WalkedExchange, reached: set[Destination]
    ) -> Iterator[tuple[str, Row] | None]:
        """Yield the rows of the matching bindings of an exchange, at most `limit`.

        If there are more, bindings to other exchanges come first, because they belong to the path
        of the message.
        """
        listed = walked.matched
        if 0 < self._limit < len(listed):
            to_exchanges: list[MatchedBinding] = []
            others: list[MatchedBinding] = []
            for number, matched in enumerate(listed, 1):
                some = to_exchanges if isinstance(matched.binding.destination, Exchange) else others
                if len(some) < self._limit:
                    some.append(matched)
                if number % STEPS == 0:
                    yield None
            listed = [*to_exchanges, *others][: self._limit]
        # An answer may list 10,000 bindings, so a reason that all of them have is found once.
        common = common_reason(walked.exchange)
        for matched in listed:
            yield "bindings", self._binding_row(walked.exchange, matched, reached, common)

    def _binding_row(
        self, exchange: Exchange, matched: MatchedBinding, reached: set[Destination], common: str
    ) -> Row:
        """Return the row of a matching binding.

        `common` is the reason why each matching binding of the exchange matches; "" if the reasons
        differ.
        """
        binding = matched.binding
        row = self._row(exchange.name, binding.key, binding.destination, binding)
        reason = common or reason_of(exchange, binding, matched.key, self._properties)
        if PARTLY in binding.arguments and binding.destination not in reached:
            reason += "; not delivered: the session's user may not read this topic"
        row["reason"] = reason
        if matched.key != self._key:
            row["matched_key"] = printable_key(matched.key)
        return row

    def _row(self, exchange: str, key: str, target: Destination, binding: Binding | None) -> Row:
        """Return the fields of a row that describe a binding: exchange, key and destination."""
        kind = self._kind(target)
        row: Row = {
            "exchange": exchange,
            "binding_key": printable_key(key),
            "destination": target.name,
            "destination_type": kind,
        }
        if binding is not None:
            if kind == SESSION:
                row["qos"] = int(binding.qos)
            elif binding.arguments:
                row["arguments"] = dict(binding.arguments)
        return row

    def _kind(self, target: Destination) -> str:
        # Most destinations are queues, and `isinstance` is slow for the classes of destinations.
        named = self._vhost.queues.get(target.name) or self._vhost.replies.get(target.name)
        if named is not None and named is target:
            return kind_of(named)
        if isinstance(target, Subscriber):
            return SESSION
        return EXCHANGE_KIND if isinstance(target, Exchange) else INTERNAL_KIND

    def _destinations(self, explanation: RouteExplanation) -> Iterator[tuple[str, Row] | None]:
        """Yield the rows of the queues and sessions, at most `limit` rows for each verdict.

        `head["verdicts"]` gets the number of all queues and sessions by verdict.
        """
        counts: dict[str, int] = {}
        self.head["verdicts"] = counts
        for number, (target, qos) in enumerate(explanation.targets, 1):
            verdict = verdict_of(target, qos)
            kind = verdict.kind
            count = counts[kind] = counts.get(kind, 0) + 1
            if count <= self._limit or not self._limit:
                yield "queues", self._queue_row(target, kind, verdict.text)
            elif number % STEPS == 0:
                yield None
        for target in explanation.unrepresentable:
            count = counts[UNREPRESENTABLE] = counts.get(UNREPRESENTABLE, 0) + 1
            if count <= self._limit or not self._limit:
                text = "its protocol cannot represent this routing key"
                yield "queues", self._queue_row(target, UNREPRESENTABLE, text)
        for journal in self._planner.journals:
            if journal not in explanation.reached:
                counts[TAKES] = counts.get(TAKES, 0) + 1
                text = "a journal records every message of the virtual host"
                yield "queues", self._queue_row(journal, TAKES, text)

    def _queue_row(self, target: Queue | Subscriber, verdict: str, text: str) -> Row:
        return {
            "name": target.name,
            "type": self._kind(target),
            "verdict": verdict,
            "text": text,
        }

    def _near_miss_row(self, miss: NearMiss) -> Row:
        row = self._row(miss.exchange, miss.key, miss.destination, miss.binding)
        row["kind"] = miss.difference.kind
        row["text"] = miss.difference.text
        return row


def _in_vhost(
    user: str, client_id: str, vhost: VirtualHost, identity_of: Callable[[str], Identity | None]
) -> Identity | None:
    """Return the identity of a user in a virtual host; None if the user may not enter it.

    Raises NotFound if there is no such user.
    """
    identity = identity_of(user)
    if identity is None:
        raise NotFound(f"there is no user '{user}'")
    return identity.for_vhost(vhost.name, client_id)


def _exchange_row(walked: WalkedExchange) -> Row:
    row: Row = {
        "name": walked.exchange.name,
        "type": walked.exchange.kind,
        "entered": walked.entered,
        "matched": len(walked.matched),
    }
    if walked.alternate:
        row["alternate"] = walked.alternate
    return row


def printable_key(key: str) -> str:
    """Return a routing key as printable text. The key may have bytes that are not UTF-8."""
    if key.isascii():
        return key
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
