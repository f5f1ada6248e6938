"""Estimates of the memory that messages and bindings take, from evenly spaced samples.

To compute an exact sum, the event loop would have to stop while all messages, perhaps a million,
are visited. A running total would cost time for every message.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message

#: Number of messages of one queue or client that are sampled for an estimate.
SAMPLES: Final[i64] = 128
#: Memory of a message beside its content, in bytes: its objects and its place in a queue.
MESSAGE_SIZE: Final[i64] = 300
#: Memory of a binding or subscription with its part of the matcher, in bytes.
BINDING_SIZE: Final[i64] = 600


def estimate(samples: list[Message], count: i64) -> i64:
    """Return the memory in bytes of `count` messages, of which `samples` are a sample."""
    if count <= 0:
        return 0
    size: i64 = 0
    for message in samples:
        size += len(message.content) + len(message.recoded)
    return size * count // max(1, len(samples)) + MESSAGE_SIZE * count
