"""Tests of moves of messages: their order and bounds, and the messages that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.vhost.message_move import (
    ASIDE_MAX,
    CANCELLED,
    DONE,
    RUNNING,
    STOPPED,
    UNSETTLED_MAX,
    MessageMove,
    MessageMoves,
)
from broker.vhost.move_destination import MoveDestination, ToExchange, ToOrigin, ToQueue
from tests.clients import World
from tests.store.homes import Home
from tests.store.message_moves import MANY, bodies, filled, move_of, run

B, Q = spec.Basic, spec.Queue


def test_all_messages_move_in_order_and_keep_their_address_and_properties() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", "amq.topic", "#", durable=True)
    client.queue("r", durable=True)
    for number in range(300):
        client.publish(
            "amq.topic", f"k.{number}", b"%d" % number, delivery_mode=2, headers={"n": number}
        )
    move = run(world, move_of(world, ToQueue("r")))
    assert (move.state, move.moved, move.reason, move.refused) == (DONE, 300, "", {})
    frames = client.send(B.Get(queue="r"))
    assert (frames[0].exchange, frames[0].routing_key, frames[0].redelivered) == (
        "amq.topic",
        "k.0",
        False,
    )
    assert frames[1].properties.headers == {"n": 0}
    assert bodies(world.queue("r")) == [b"%d" % number for number in range(1, 300)]
    assert world.queue("q").depth == 0
    assert world.copies() == {"moved": 300}
    world.fates()


def test_a_moved_message_has_no_delivery_count_of_its_source() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", x_delivery_limit=5)
    client.queue("r", x_delivery_limit=5)
    client.publish("", "q", b"m", headers={"mine": 1})
    for tag in (1, 2):
        client.send(B.Get(queue="q"))
        client.send(B.Reject(tag, requeue=True))
    assert run(world, move_of(world, ToQueue("r"))).moved == 1
    frames = client.send(B.Get(queue="r"))
    assert (frames[0].redelivered, frames[1].properties.headers) == (False, {"mine": 1})


def test_a_count_and_the_messages_of_the_beginning_bound_a_move() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    sent = filled(client, 500)
    assert run(world, move_of(world, ToQueue("r"), count=3)).moved == 3
    assert bodies(world.queue("r")) == sent[:3]
    move = move_of(world, ToQueue("r"))
    move.schedule()
    filled(client, 50)
    while not move.is_complete:
        world.turn()
    assert move.moved == 497
    assert world.queue("q").depth == 50


def test_a_move_works_in_slices_and_can_be_cancelled() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    sent = filled(client, 2_000)
    move = move_of(world, ToQueue("r"))
    move.schedule()
    world.broker.agenda.turn()
    assert 0 < move.moved <= 100
    move.cancel()
    world.settle()
    assert (move.state, move.is_complete) == (CANCELLED, True)
    assert bodies(world.queue("r")) + bodies(world.queue("q")) == sent


def test_moved_messages_that_are_not_durable_are_bounded() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    filled(client, int(UNSETTLED_MAX) + 500)
    world.slow_disk = True
    move = move_of(world, ToQueue("r"))
    move.schedule()
    for _ in range(200):
        world.broker.agenda.turn()
    assert UNSETTLED_MAX <= move.moved < UNSETTLED_MAX + 100
    assert world.broker.agenda.idle
    world.durable()
    world.slow_disk = False
    while not move.is_complete:
        world.turn()
    assert move.moved == UNSETTLED_MAX + 500


def test_a_rate_spreads_the_messages_over_the_time() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    filled(client, 50)
    move = move_of(world, ToQueue("r"), rate=10.0)
    move.schedule()
    world.turn()
    assert move.moved == 1
    for second in range(1, 5):
        for _ in range(20):
            world.sleep(50)
        assert move.moved == 10 * second + 1
    for _ in range(30):
        world.sleep(50)
    assert (move.state, move.moved) == (DONE, 50)


def test_a_move_waits_while_an_alarm_is_on() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    filled(client, 5)
    world.vhost.alarm(True)
    move = move_of(world, ToQueue("r"))
    move.schedule()
    world.sleep(1_000)
    assert (move.state, move.moved, move.reason) == (
        RUNNING,
        0,
        "an alarm for memory or disk is on",
    )
    world.vhost.alarm(False)
    world.sleep(1_000)
    assert (move.state, move.moved, move.reason) == (DONE, 5, "")


def test_consumers_of_the_source_get_the_messages_that_are_not_moved_yet() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    sent = filled(client, 1_000)
    move = move_of(world, ToQueue("r"))
    move.schedule()
    world.broker.agenda.turn()
    frames = client.send(B.Consume(queue="q", no_ack=True))
    world.settle(client.connection)
    delivered = client.bodies(frames) + client.bodies()
    assert move.state == DONE
    assert bodies(world.queue("r")) + delivered == sent


# -- messages that stay


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x_max_length": 3}, "queue 'r' is full: 3 of 3 messages wait"),
        ({"x_max_length": 3, "x_overflow": "reject-publish"}, "queue 'r' is full: 3 of 3"),
        ({"x_max_length_bytes": 12}, "queue 'r' is full: 12 of 12 bytes wait"),
        ({"x_message_ttl": 0}, "queue 'r' keeps no message, because its time to live is 0 ms"),
    ],
)
def test_a_queue_that_would_drop_a_message_stops_the_move(
    arguments: dict[str, Any], reason: str
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True, **arguments)
    sent = filled(client, 10)
    move = run(world, move_of(world, ToQueue("r")))
    assert move.state == STOPPED
    assert move.reason.startswith(reason)
    assert bodies(world.queue("r")) + bodies(world.queue("q")) == sent
    assert set(world.copies()) <= {"moved"}


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        (ToQueue("none"), "there is no queue 'none' in vhost '/'"),
        (ToQueue("q"), "the message would come back to queue 'q'"),
        (ToExchange("amq.fanout", "k"), "the message would come back to queue 'q'"),
        (ToExchange("amq.direct", None), "no queue is bound to exchange 'amq.direct' in vhost '/'"),
        (ToExchange("none", "k"), "no exchange 'none' in vhost '/'"),
        (ToOrigin(), "the message is not a dead letter"),
    ],
)
def test_messages_without_a_destination_stay_in_their_places(
    destination: MoveDestination, reason: str
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", "amq.fanout", "", durable=True)
    sent = filled(client, 10)
    before = world.queue("q").statistics()
    move = run(world, move_of(world, destination))
    assert move.moved == 0
    assert [one for one in move.refused if one.startswith(reason)] != []
    assert bodies(world.queue("q")) == sent
    assert (world.queue("q").unacked, world.copies()) == (0, {})
    assert world.queue("q").statistics() == before
    assert client.send(B.Get(queue="q"))[0].redelivered is False


@pytest.mark.parametrize("arguments", [{"x_max_length": 300}, {"x_max_length_bytes": 1_200}])
def test_a_queue_over_its_limit_drops_its_oldest_messages_when_others_come_back(
    arguments: dict[str, Any],
) -> None:
    """Fill the queue up to its limit while a move holds the queue's first messages.

    The move then returns its messages to the queue, which drops the oldest ones.
    """
    world = World()
    client = world.amqp()
    client.queue("q", x_dead_letter_exchange="amq.fanout", **arguments)
    client.queue("dead", "amq.fanout")
    sent = filled(client, 300)
    move = move_of(world, ToOrigin())
    move.schedule()
    world.broker.agenda.turn()
    aside = int(world.queue("q").unacked)
    assert 50 < aside < 200 and world.copies() == {}
    sent += filled(client, 50)
    world.settle()
    assert (move.state, world.queue("q").unacked) == (DONE, 0)
    assert bodies(world.queue("q")) == sent[50:]
    assert bodies(world.queue("dead")) == sent[:50]
    world.fates()


def test_too_many_messages_without_a_destination_stop_the_move() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    sent = filled(client, ASIDE_MAX + 100)
    move = run(world, move_of(world, ToOrigin()))
    assert move.state == STOPPED
    assert move.reason.startswith(
        "1000 messages cannot be moved; the reason for the last message: the message is no"
    )
    assert bodies(world.queue("q")) == sent


def test_a_deleted_source_ends_the_move_and_settles_what_was_set_aside(tmp_path: Path) -> None:
    home = Home(tmp_path / "data")
    client = home.amqp()
    client.queue("q", durable=True)
    filled(client, 500)
    move = move_of(home, ToOrigin())
    move.schedule()
    home.broker.agenda.turn()
    assert home.queue("q").unacked > 0
    client.send(Q.Delete(queue="q"))
    while not move.is_complete:
        home.turn()
    assert (move.state, move.reason) == (STOPPED, "queue 'q' was deleted")
    home.crash()
    second = Home(tmp_path / "data")
    assert (second.complaints, "q" in second.vhost.queues) == ([], False)
    second.crash()


def test_duplicates_are_not_moved_into_a_queue_that_would_drop_them() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True, x_message_deduplication=True)
    for number in (1, 2, 1):
        client.publish(
            "", "q", b"%d" % number, delivery_mode=2, headers={"x-deduplication-header": number}
        )
    move = run(world, move_of(world, ToExchange("", "r")))
    assert (move.state, move.moved) == (DONE, 2)
    reason = "queue 'r' already has a message with the same x-deduplication-header"
    assert move.refused == {reason: 1}
    assert (bodies(world.queue("q")), bodies(world.queue("r"))) == ([b"1"], [b"1", b"2"])


def test_rights_are_checked_again_in_each_slice() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    filled(client, 500)
    reader = Identity("ann", "", "", "^q$")
    move = run(world, move_of(world, ToQueue("r"), identity=reader))
    assert move.state == STOPPED
    assert move.reason == (
        "write access to exchange 'amq.default' in vhost '/' refused for user 'ann'"
    )
    identities: list[Identity | None] = [Identity("ann", "", ".*", ".*")]
    move = MessageMove(
        world.vhost, world.queue("q"), ToQueue("r"), lambda: identities[0], MANY, 0.0
    )
    move.schedule()
    world.broker.agenda.turn()
    identities[0] = Identity("ann", "", ".*", "^r$")
    world.settle()
    assert move.state == STOPPED
    assert move.reason == "read access to queue 'q' in vhost '/' refused for user 'ann'"
    assert 0 < move.moved <= 200
    identities[0] = None
    move = MessageMove(
        world.vhost, world.queue("q"), ToQueue("r"), lambda: identities[0], MANY, 0.0, "ann"
    )
    assert run(world, move).reason == (
        "user 'ann' has no permissions in vhost '/' any more: grant permissions, and begin the "
        "move again"
    )


# -- time to live, and priorities


def test_the_time_to_live_of_a_message_goes_on() -> None:
    world = World()
    client = world.amqp()
    kinds: dict[str, dict[str, Any]] = {"q": {}, "ttl": {"x_message_ttl": 50}, "r": {}}
    for name, arguments in kinds.items():
        client.queue(name, durable=True, **arguments)
    client.publish("", "q", b"own", delivery_mode=2, expiration="1000")
    client.publish("", "ttl", b"both", delivery_mode=2, expiration="1000")
    client.publish("", "ttl", b"queue", delivery_mode=2)
    world.sleep(40)
    for source in ("q", "ttl"):
        run(world, move_of(world, ToQueue("r"), source))
    assert bodies(world.queue("r")) == [b"own", b"both", b"queue"]
    world.sleep(970)
    assert bodies(world.queue("r")) == [b"both", b"queue"]
    world.sleep(40)
    assert bodies(world.queue("r")) == [b"queue"]


def test_expired_messages_are_not_moved() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    client.publish("", "q", b"first", delivery_mode=2)
    client.publish("", "q", b"expired", delivery_mode=2, expiration="10")
    client.publish("", "q", b"last", delivery_mode=2)
    world.sleep(20)
    run(world, move_of(world, ToQueue("r")))
    assert bodies(world.queue("r")) == [b"first", b"last"]
    assert world.copies() == {"moved": 2, "expired": 1}


def test_messages_of_a_priority_queue_move_in_its_order() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True, x_max_priority=9)
    client.queue("r", durable=True)
    for priority in (1, 5, 3, 5):
        client.publish("", "q", b"%d" % priority, delivery_mode=2, priority=priority)
    run(world, move_of(world, ToQueue("r")))
    assert bodies(world.queue("r")) == [b"5", b"5", b"3", b"1"]


def test_moves_are_listed_and_old_ones_are_forgotten() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("r", durable=True)
    moves = MessageMoves()
    for number in range(1, 101):
        move = move_of(world, ToQueue("r"))
        assert moves.running(world.queue("q")) == 0
        assert moves.start(move) == number
        assert (moves.running(world.queue("q")), moves.find(number)) == (number, move)
        while not move.is_complete:
            world.turn()
    assert len(moves.all()) <= 66
    assert moves.all()[-1][0] == 100
    assert moves.find(1) is None
    assert not moves.is_full
