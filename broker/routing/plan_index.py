"""The index of the plans in use in a virtual host: finds the plans that a change makes stale.

A change of a binding concerns the messages of one exchange, and often of one first word of the
routing key: a subscription to `command.lamp7.#` does not concern `telemetry.lamp7`. So plans are
kept in buckets, by the exchanges that lead to their destinations, and by a hash of the first word:

    (exchange, bucket of the first word) --> plans

A change of a binding whose key begins with a word retires the plans of one bucket. If the key
begins with a wildcard, the change retires the plans of all buckets of the exchange.

A retired plan is stale: its messages take the slow path, which gives their routes a new plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.message import ALWAYS
from broker.routing.plan import Plan

#: Number of buckets of first words for each exchange. Routes in different buckets never share a
#: plan, so more buckets take more memory.
BUCKETS: Final[i64] = 64
#: A plan that depends on more exchanges than this number is retired by every change of a binding.
EXCHANGES_MAX: Final = 8
#: Largest number of retired plans that are released in one turn.
PLANS_PER_SLICE: Final = 1_000


def first_word(key: str) -> str:
    """Return the first word of a routing key: the text before the first `.`."""
    return key.partition(".")[0]


def bucket_of(word: str) -> i64:
    """Return the number of the bucket for routing keys that begin with this word."""
    return hash(word) & (BUCKETS - 1)


class PlanPlace:
    """The exchanges that a plan depends on, and the bucket of its routing keys.

    The bucket is a hash of the first word of the routing keys.
    """

    __slots__ = ("_hash", "bucket", "exchanges")

    def __init__(self, exchanges: Iterable[str], key: str) -> None:
        self.exchanges: tuple[str, ...] = tuple(exchanges)
        self.bucket = bucket_of(first_word(key))
        self._hash = hash((self.exchanges, self.bucket))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PlanPlace)
            and self.bucket == other.bucket
            and self.exchanges == other.exchanges
        )


class PlanIndex:
    """The interned plans: routes with the same exchanges, bucket and destinations share one plan.

    The bucket of a route is a hash of the first word of its routing key. At most `most` plans are
    kept for messages whose destinations depend on their headers.
    """

    def __init__(self, agenda: Agenda, most: int) -> None:
        self._agenda = agenda
        self._most = most
        #: Plans by key. A key identifies the input from which the plan was made, and begins with a
        #: PlanPlace.
        self._plans: dict[tuple[object, ...], Plan] = {}
        #: For each exchange and bucket, its plans and their keys in the index.
        self._buckets: dict[tuple[str, i64], dict[Plan, tuple[object, ...]]] = {}
        #: The plans that depend on more than EXCHANGES_MAX exchanges.
        self._broad: dict[Plan, tuple[object, ...]] = {}
        #: The plans of messages whose destinations depend on their headers, by destinations. Each
        #: of these messages has a search of its own, so no change makes these plans stale: after a
        #: change, the searches find other destinations.
        self._of_messages: dict[tuple[object, ...], Plan] = {}
        #: For each set of destinations, one of the plans that lead to it.
        self._twins: dict[tuple[object, ...], Plan] = {}

    def __len__(self) -> int:
        return len(self._plans) + len(self._of_messages)

    def get(self, key: tuple[object, ...]) -> Plan | None:
        """Return the plan with this key; None if there is none.

        The key has the PlanPlace, the destinations and other properties of the plan.
        """
        return self._plans.get(key)

    def get_of_message(self, key: tuple[object, ...]) -> Plan | None:
        """Return a plan for messages whose destinations depend on their headers, or None.

        The key has the destinations that were found for one message. The result is None if no plan
        has these destinations.
        """
        return self._of_messages.get(key)

    def add_of_message(self, key: tuple[object, ...], plan: Plan) -> None:
        """Add a plan for messages whose destinations depend on their headers.

        The key has the destinations of the plan.
        """
        if len(self._of_messages) >= self._most:
            self._release_of_messages()
        self._of_messages[key] = plan

    def _release_of_messages(self) -> None:
        if self._of_messages:
            plans, self._of_messages = self._of_messages, {}
            PlanRelease(self._agenda, list(plans.values())).run_first_slice()

    def twin(self, key: tuple[object, ...]) -> Plan | None:
        """Return a new plan for `key`, made from an existing plan with the same destinations.

        Return None if no plan has these destinations. The new plan is for other exchanges or
        routing keys than the existing plan, but both plans share their lists of destinations and
        their Relay objects. So a front end can send packets of both plans with one call (see
        Relay).
        """
        known = self._twins.get(key[1:])
        return None if known is None else known.twin()

    def add(self, key: tuple[object, ...], plan: Plan) -> None:
        """Add a plan. The key begins with the PlanPlace of the plan."""
        place = key[0]
        assert isinstance(place, PlanPlace)
        self._plans[key] = plan
        self._twins.setdefault(key[1:], plan)
        if len(place.exchanges) > EXCHANGES_MAX:
            self._broad[plan] = key
            return
        for exchange in place.exchanges:
            self._buckets.setdefault((exchange, place.bucket), {})[plan] = key

    def retire(self, exchange: str, word: str | None) -> None:
        """Make stale all plans through this exchange for routing keys with this first word.

        If `word` is None, make the plans for all keys stale.
        """
        self._release_of_messages()
        if not self._plans:
            return
        retired, self._broad = self._broad, {}
        if word is not None:
            retired.update(self._buckets.get((exchange, bucket_of(word)), {}))
        else:
            bucket: i64 = 0
            while bucket < BUCKETS:
                retired.update(self._buckets.get((exchange, bucket), {}))
                bucket += 1
        for plan, key in retired.items():
            self._remove(plan, key)
        if retired:
            PlanRelease(self._agenda, list(retired)).run_first_slice()

    def _remove(self, plan: Plan, key: tuple[object, ...]) -> None:
        _make_stale(plan)
        del self._plans[key]
        if self._twins.get(key[1:]) is plan:
            del self._twins[key[1:]]
        place = key[0]
        assert isinstance(place, PlanPlace)
        for exchange in place.exchanges:
            plans = self._buckets.get((exchange, place.bucket))
            if plans is not None:
                plans.pop(plan, None)
                if not plans:
                    del self._buckets[exchange, place.bucket]

    def retire_all(self) -> None:
        """Make all plans of the virtual host stale."""
        self._release_of_messages()
        plans, self._plans = self._plans, {}
        self._buckets, self._broad, self._twins = {}, {}, {}
        for plan in plans.values():
            _make_stale(plan)
        if plans:
            PlanRelease(self._agenda, list(plans.values())).run_first_slice()


def _make_stale(plan: Plan) -> None:
    plan.stale = True
    plan.slow_path_mask = ALWAYS


class PlanRelease(BulkTask):
    """The release of retired plans, in slices, because there may be as many plans as topics."""

    def __init__(self, agenda: Agenda, plans: list[Plan]) -> None:
        super().__init__(agenda)
        self._plans = plans

    def has_work(self) -> bool:
        return bool(self._plans)

    def do_slice(self) -> None:
        plans = self._plans
        left = PLANS_PER_SLICE
        while plans and left:
            left -= 1
            plans.pop().release()
