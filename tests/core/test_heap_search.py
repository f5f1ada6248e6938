"""Tests of the search for one of very many delayed messages: it takes several slices."""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.delay import COMPARED_PER_SLICE, DelayQueue
from broker.queues.heap_search import HeapSearch, remove_at
from tests.clients import World


def second(entry: tuple[int, int]) -> int:
    return entry[1]


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_is_found_while_other_entries_come_and_go(seed: int) -> None:
    random = Random(seed)
    number = 0
    for _ in range(40):
        heap: list[tuple[int, int]] = []
        for _ in range(random.randrange(1, 60)):
            number += 1
            heapq.heappush(heap, (random.randrange(100), number))
        wanted = random.choice(heap)
        search = HeapSearch(heap, second, wanted[1])
        at = search.find(random.randrange(4))
        while at < 0:
            assert not search.is_over
            for _ in range(random.randrange(4)):
                number += 1
                heapq.heappush(heap, (random.randrange(100), number))
                search.on_push()
            if heap[0] != wanted and random.random() < 0.7:
                heapq.heappop(heap)
            at = search.find(random.randrange(4))
        assert heap[at] == wanted


def test_a_number_that_no_entry_has_is_not_found() -> None:
    heap = [(one, one) for one in range(10)]
    search = HeapSearch(heap, second, 10)
    assert [search.find(4) for _ in range(3)] == [-1, -1, -1]
    assert search.is_over


@pytest.mark.parametrize("seed", range(20))
def test_the_rest_of_a_heap_stays_in_order(seed: int) -> None:
    random = Random(seed)
    entries = [(random.randrange(30), number) for number in range(random.randrange(1, 80))]
    heap = list(entries)
    heapq.heapify(heap)
    while heap:
        at = random.randrange(len(heap))
        entries.remove(heap[at])
        remove_at(heap, at)
        assert [heapq.heappop(copy) for copy in [list(heap)] for _ in entries] == sorted(entries)


def delaying(world: World) -> tuple[Any, DelayQueue]:
    """Let a client declare the delayed-message exchange `later`.

    Return the client, and the exchange's queue of delayed messages.
    """
    client = world.amqp()
    client.send(
        spec.Exchange.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        )
    )
    return client, world.vhost.delays["later"]


def test_a_withdrawal_compares_a_slice_of_the_messages_in_each_turn() -> None:
    world = World()
    client, waiting = delaying(world)
    count = int(COMPARED_PER_SLICE) + 1
    for delay in range(1, count + 1):
        client.publish("later", "k", b"", headers={"x-delay": delay})
    answers: list[bool] = []
    # The head is compared last, in a slice of its own, after a slice for the messages on disk.
    waiting.withdraw(1, answers.append)
    waiting.withdraw(2, answers.append)
    for _ in range(2):
        world.broker.agenda.turn()
        assert (answers, int(waiting.depth)) == ([], count)
    world.broker.agenda.turn()
    assert (answers, int(waiting.depth)) == ([True], count - 1)
    # The next withdrawal ends although the queue is deleted meanwhile.
    client.send(spec.Exchange.Delete(exchange="later"))
    world.settle()
    assert answers == [True, False]
    world.fates()


def test_a_cancelled_withdrawal_ends_without_a_search() -> None:
    world = World()
    client, waiting = delaying(world)
    for delay in (10, 20, 30):
        client.publish("later", "k", b"", headers={"x-delay": delay})
    answers: list[bool] = []
    first = waiting.withdraw(1, answers.append)
    second = waiting.withdraw(2, answers.append)
    waiting.withdraw(3, answers.append)
    first.cancel()
    second.cancel()
    world.settle()
    assert (answers, int(waiting.depth)) == ([False, False, True], 2)
    world.fates()
