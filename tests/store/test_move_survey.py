"""Tests of dry runs of moves: the predicted effects are those of the move that follows."""

from __future__ import annotations

import pytest

from broker.access.identity import INTERNAL
from broker.vhost.move_destination import ToExchange, ToQueue
from broker.vhost.move_survey import MoveSurvey
from tests.clients import World
from tests.store.message_moves import MANY, bodies, filled, move_of, run


def test_a_dry_run_says_what_a_move_would_do() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", "amq.topic", "a.#", durable=True)
    client.queue("t", "amq.topic", "#")
    sent = filled(client, 40)
    before = world.queue("q").statistics()
    survey = MoveSurvey(world.vhost, INTERNAL, ToExchange("amq.topic", "a.b"), world.queue("q"), 30)
    steps = sum(1 for _ in survey.steps())
    assert steps >= 30
    assert (survey.messages, survey.examined) == (30, 30)
    assert (survey.queues, survey.transient, survey.refused) == ({"r": 30, "t": 30}, {"t"}, {})
    assert bodies(world.queue("q")) == sent
    assert world.queue("q").statistics() == before


@pytest.mark.parametrize(
    ("limits", "room"),
    [({"x_max_length": 8}, 8), ({"x_max_length_bytes": 20}, 6), ({"x_max_length": 40}, 30)],
)
@pytest.mark.parametrize("by_exchange", [False, True])
def test_a_dry_run_counts_the_messages_that_fit(
    limits: dict[str, int], room: int, by_exchange: bool
) -> None:
    """Check that a move to a queue with limits moves as many messages as the dry run predicted.

    Each message has 3 bytes.
    """
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", "amq.topic", "#", durable=True, **limits)
    for _ in range(30):
        client.publish("", "q", b"abc", delivery_mode=2)
    destination = ToExchange("amq.topic", "a") if by_exchange else ToQueue("r")
    survey = MoveSurvey(world.vhost, INTERNAL, destination, world.queue("q"), MANY)
    for _ in survey.steps():
        pass
    move = run(world, move_of(world, destination))
    assert (survey.messages, survey.examined) == (30, 30)
    assert survey.queues == {"r": room} and move.moved == room
    assert survey.refused == move.refused
    assert list(move.refused.values()) == ([30 - room] if room < 30 else [])
