"""Tests of redrive: dead letters move back to the queues that dead-lettered them."""

from __future__ import annotations

from pathlib import Path

import pamqp.commands as spec
import pytest

from broker.access.identity import INTERNAL
from broker.vhost.message_move import DONE
from broker.vhost.move_destination import ToOrigin
from broker.vhost.move_survey import MoveSurvey
from tests.clients import Amqp, World
from tests.store.homes import Home
from tests.store.message_moves import MANY, bodies, move_of, run

B, Q = spec.Basic, spec.Queue


def dead_lettered(world: World, client: Amqp) -> None:
    """Fill the queue `dead` with dead letters of the queues `a` and `b`.

    Also publish one message to `dead` that is no dead letter, but has a forged `x-death` header.
    """
    client.queue("dead", durable=True)
    for name in ("a", "b"):
        client.queue(
            name,
            "amq.topic",
            f"{name}.#",
            durable=True,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="dead",
        )
    for name in ("a", "b", "a"):
        client.publish("amq.topic", f"{name}.x", name.encode(), delivery_mode=2)
    client.publish("", "dead", b"stray", delivery_mode=2, headers={"x-death": [{"queue": "a"}]})
    for name in ("a", "a", "b"):
        client.send(B.Get(queue=name))
    client.send(B.Nack(0, multiple=True, requeue=False))
    world.settle(client.connection)
    assert world.queue("dead").depth == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_redrive_brings_dead_letters_back_to_where_they_died(
    tmp_path: Path, restarted: bool
) -> None:
    home = Home(tmp_path / "data")
    dead_lettered(home, home.amqp())
    if restarted:
        home.crash()
        home = Home(tmp_path / "data")
    client = home.amqp()
    survey = MoveSurvey(home.vhost, INTERNAL, ToOrigin(), home.queue("dead"), MANY)
    for _ in survey.steps():
        pass
    assert (survey.messages, survey.examined, survey.queues) == (4, 4, {"a": 2, "b": 1})
    assert list(survey.refused.values()) == [1]
    move = run(home, move_of(home, ToOrigin(), "dead"))
    assert (move.state, move.moved) == (DONE, 3)
    assert bodies(home.queue("dead")) == [b"stray"]
    assert [bodies(home.queue(name)) for name in ("a", "b")] == [[b"a", b"a"], [b"b"]]
    frames = client.send(B.Get(queue="a"))
    assert (frames[0].exchange, frames[0].routing_key) == ("amq.topic", "a.x")
    assert frames[1].properties.headers["x-death"][0]["queue"] == "a"
    # A moved message that is rejected becomes a dead letter again.
    client.send(B.Nack(1, requeue=False))
    home.settle(client.connection)
    assert sorted(bodies(home.queue("dead"))) == [b"a", b"stray"]
    home.crash()


def test_redrive_leaves_messages_whose_queue_is_gone() -> None:
    world = World()
    client = world.amqp()
    dead_lettered(world, client)
    client.send(Q.Delete(queue="b"))
    move = run(world, move_of(world, ToOrigin(), "dead"))
    assert move.moved == 2
    assert move.refused["there is no queue 'b' in vhost '/'"] == 1
    assert sorted(bodies(world.queue("dead"))) == [b"b", b"stray"]
