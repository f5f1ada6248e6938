"""Tests of the limit of the wildcard patterns that one destination may have in a topic exchange.

For each destination, the exchange computes a bound: the highest number of trie nodes that the
lookup of one topic can visit because of the destination's patterns. The bound must stay correct
when a policy replaces the destination queue.
"""

from __future__ import annotations

from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import LimitExceeded
from broker.limits import BrokerLimits
from broker.queues.limited import LimitedQueue
from broker.queues.policies import policy_of
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import TopicExchange
from broker.routing.exchanges.topic import UNCHECKED_PATTERNS
from matching.visits import VisitBound
from tests.clients import World

#: Patterns of eight words. Each of them makes the bound of its destination larger.
PATTERNS = [".".join(words) for words in product(["*", "a"], repeat=8) if "*" in words]


class Bindings:
    """A topic exchange with the bindings of one queue, and a model of the queue's patterns."""

    def __init__(self, limit: int = 100_000) -> None:
        limits = BrokerLimits()
        limits.pattern_nodes = limit
        self.world = World(limits)
        self.world.vhost.declare_queue("q")
        exchange = self.world.vhost.exchange("amq.topic")
        assert isinstance(exchange, TopicExchange)
        self.exchange = exchange
        self.model: list[str] = []

    @property
    def queue(self) -> Queue:
        return self.world.queue("q")

    def bind(self, pattern: str) -> None:
        self.world.vhost.bind("amq.topic", Binding(pattern, self.queue))
        if pattern not in self.model:
            self.model.append(pattern)

    def unbind(self, pattern: str) -> None:
        self.world.vhost.unbind("amq.topic", Binding(pattern, self.queue))
        if pattern in self.model:
            self.model.remove(pattern)

    def replace(self) -> Queue:
        """Replace the queue by means of a policy; return the old queue."""
        old = self.queue
        self.world.vhost.applied_policies.set_policy(
            policy_of("/", "p", {"pattern": "q", "definition": {"max-length": 10}})
        )
        self.world.settle()
        return old

    @property
    def expected(self) -> int:
        """The number of trie nodes that the patterns of the model can make one lookup visit."""
        bound = VisitBound(next(iter(self.exchange)).grammar) if self.model else None
        for pattern in self.model:
            assert bound is not None
            bound.add(pattern)
        return 0 if bound is None else bound.nodes

    @property
    def bounds(self) -> dict[str, int]:
        """The bounds that the exchange has stored, by the name of the destination.

        A bound is the number of trie nodes that the destination's patterns can make one lookup
        visit.
        """
        return {
            destination.name: bound.nodes
            for destination, bound in self.exchange._bounds_by_destination.items()
        }


def test_the_bound_of_a_replaced_queue_moves_and_leaves_nothing_behind() -> None:
    one = Bindings()
    for pattern in islice(PATTERNS, UNCHECKED_PATTERNS + 8):
        one.bind(pattern)
    before = one.bounds
    assert before == {"q": one.expected}
    old = one.replace()
    assert isinstance(one.queue, LimitedQueue) and one.queue is not old
    assert one.bounds == before and len(one.exchange._bounds_by_destination) == 1
    assert old not in one.exchange._bounds_by_destination and old not in one.exchange.bindings
    one.bind(PATTERNS[-1])
    assert one.bounds == {"q": one.expected} and one.expected > before["q"]
    for pattern in list(one.model):
        one.unbind(pattern)
    assert one.exchange._bounds_by_destination == {} and not one.exchange.bindings


def test_a_further_binding_of_a_replaced_queue_counts_on_the_bound_that_moved() -> None:
    one = Bindings(200)
    refused = ""
    for pattern in PATTERNS:
        try:
            one.bind(pattern)
        except LimitExceeded:
            refused = pattern
            break
    assert refused
    one.replace()
    with pytest.raises(LimitExceeded, match=r"wildcards in the .* bindings of 'q' "):
        one.bind(refused)
    # The refused binding fits after some bindings are removed, as it would have before the
    # replacement.
    for pattern in one.model[:40]:
        one.unbind(pattern)
    one.bind(refused)
    assert one.bounds == {"q": one.expected} and one.expected <= 200


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("bind"), st.sampled_from(PATTERNS)),
            st.tuples(st.just("unbind"), st.sampled_from(PATTERNS)),
            st.just(("replace", "")),
        ),
        max_size=30,
    )
)
def test_bound_of_patterns_survives_changes_of_the_queue(
    steps: list[tuple[str, str]],
) -> None:
    one = Bindings()
    for pattern in islice(PATTERNS, UNCHECKED_PATTERNS + 1):
        one.bind(pattern)
    for step, pattern in steps:
        if step == "bind":
            one.bind(pattern)
        elif step == "unbind":
            one.unbind(pattern)
        else:
            one.replace()
        assert set(one.bounds) <= {"q"}
        assert all(nodes == one.expected for nodes in one.bounds.values())
        assert one.exchange.bindings.destinations() == ([one.queue] if one.model else [])
