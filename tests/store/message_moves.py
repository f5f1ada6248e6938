"""Moves of messages between queues, and the messages of a queue, for the tests of moves."""

from __future__ import annotations

from typing import Any

from broker.access.identity import INTERNAL, Identity
from broker.queues.peeking import PeekCursor, peek
from broker.queues.queue import Queue
from broker.vhost.message_move import MessageMove, MessageMoves
from broker.vhost.move_destination import MoveDestination
from tests.clients import Amqp, World, publication

MANY = 1 << 40


def move_of(
    world: World,
    destination: MoveDestination,
    source: str = "q",
    count: int = MANY,
    rate: float = 0.0,
    identity: Identity | None = INTERNAL,
) -> MessageMove:
    return MessageMove(world.vhost, world.queue(source), destination, lambda: identity, count, rate)


def run(world: World, move: MessageMove) -> MessageMove:
    """Run a move of messages until it has ended and all changes are durable."""
    MessageMoves().start(move)
    while not move.is_complete:
        world.turn()
    return move


def bodies(queue: Queue) -> list[bytes]:
    cursor, messages = PeekCursor(), []
    more = peek(queue, cursor, 100)
    while more:
        messages += [one.message.body for one in more if one.message is not None]
        more = peek(queue, cursor, 100)
    return messages


def filled(client: Amqp, count: int, queue: str = "q", **properties: Any) -> list[bytes]:
    sent = [b"%04d" % number for number in range(count)]
    properties = {"delivery_mode": 2} | properties
    client.connection.receive_data(
        b"".join(publication("", queue, body, **properties) for body in sent)
    )
    client.read()
    return sent
