"""Tests of FollowedMessages, the live messages of a log that grows.

These messages must equal the messages that one scan of the log finds (ScannedMessages), in bounded
memory.
"""

from __future__ import annotations

from random import Random

import pytest

from broker.store.live_messages import FollowedMessages, ScannedMessages

BLOCK = 16


def contents(messages: FollowedMessages | ScannedMessages) -> dict[int, list[int]]:
    return {queue: list(positions) for queue, positions in sorted(messages.by_queue().items())}


@pytest.mark.parametrize("seed", range(40))
def test_followed_messages_equal_scanned_ones_in_bounded_memory(seed: int) -> None:
    chance = Random(seed)
    followed, scanned = FollowedMessages(BLOCK), ScannedMessages()
    held: list[tuple[int, int]] = []
    position, settling = 0, chance.choice((0.2, 0.5, 0.9))
    for _ in range(1_500):
        if not held or chance.random() > settling:
            position += chance.choice((1, 1, 1, 7))
            queues = chance.sample(range(1, 6), chance.choice((0, 1, 1, 1, 3)))
            size = chance.randrange(1, 999)
            followed.add(position, list(queues), size)
            scanned.add(position, list(queues), size)
            held += [(queue, position) for queue in queues]
        else:
            # Mostly settle the oldest message, sometimes any message, or one that no queue holds.
            at = chance.choice((0, 0, 0, chance.randrange(len(held))))
            queue, settled = held.pop(at) if chance.random() < 0.95 else (9, position)
            followed.settle(queue, settled)
            scanned.settle(queue, settled)
        if chance.random() < 0.001:
            position, settling = position, chance.choice((0.2, 0.5, 0.9))
    assert contents(followed) == contents(scanned)
    assert followed.size == scanned.size
    assert all(followed.is_held(*copy) for copy in held)
    assert not followed.is_held(9, position)
    # A block with settled messages is at most half settled, except the last block.
    assert followed.count <= 2 * scanned.held + 2 * BLOCK
    assert followed.blocks <= 8 * scanned.held // BLOCK + 4


@pytest.mark.parametrize("seed", range(10))
def test_messages_of_removed_queues_are_released_block_by_block(seed: int) -> None:
    chance = Random(seed)
    followed, scanned = FollowedMessages(BLOCK), ScannedMessages()
    removed, kept = {1, 2}, {3, 4}
    for position in range(1, 300):
        queues = chance.sample(range(1, 5), chance.choice((1, 1, 2)))
        followed.add(position, list(queues), 10)
        left = [queue for queue in queues if queue in kept]
        scanned.add(position, left, 10)
    released: list[tuple[int, int]] = []
    at = followed.blocks
    while at > 0:
        at -= 1
        released += followed.release(at, kept)
        if chance.random() < 0.3:
            some = chance.randrange(1, 300)
            followed.settle(3, some)
            scanned.settle(3, some)
    assert contents(followed) == contents(scanned)
    assert {queue for queue, _ in released} == removed
    assert len(set(released)) == len(released)


def test_messages_without_a_queue_take_no_memory() -> None:
    followed = FollowedMessages()
    followed.add(1, [], 10)
    assert (followed.memory_bytes, followed.by_queue()) == (0, {})
