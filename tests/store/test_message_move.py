"""Moves of messages: nothing is lost and nothing is doubled, also if the power fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import INTERNAL, Identity
from broker.queues.peeking import PeekCursor, peek
from broker.queues.queue import Queue
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
from broker.vhost.move_survey import MoveSurvey
from tests.clients import Amqp, World, publication
from tests.store.homes import Home
from tests.store.simulated import SimulatedDisk

B, Q = spec.Basic, spec.Queue
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
        ({"x_message_ttl": 0}, "queue 'r' keeps no message: its time to live is 0 ms"),
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
        (ToOrigin(), "not a dead letter"),
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
    """The queue fills up while the move has set messages aside."""
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
    assert move.reason.startswith("1000 messages cannot be moved, the last because not a dead")
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
    assert move.refused == {"queue 'r' has a message with the same x-deduplication-header": 1}
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


# -- time to live, priorities, dead letters


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
    """Compare a dry run with the move that follows; each message has 3 bytes."""
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


# -- crashes


def counted(home: Home) -> list[bytes]:
    return sorted(bodies(home.queue("q")) + bodies(home.queue("r")))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 2}], ids=["plain", "priority"])
def test_after_a_power_loss_each_message_is_in_one_queue(
    tmp_path: Path, seed: int, arguments: dict[str, Any]
) -> None:
    random = Random(seed)
    disk = SimulatedDisk()
    home = Home(tmp_path / "data", disk=disk, segment_size=2_000)
    home.store.window = random.choice((3, 1_000))
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    client.queue("r", durable=True)
    sent = filled(client, 250)
    home.turn()
    before, recorded = SimulatedDisk(disk.contents()), len(disk.events)
    shutil.copytree(tmp_path / "data", tmp_path / "catalog")
    home.slow_disk = True
    move = move_of(home, ToQueue("r"), count=random.choice((100, MANY)))
    move.schedule()
    while not move.is_complete:
        home.broker.agenda.turn()
        if random.random() < 0.5 or move.state != RUNNING:
            home.durable()
    assert counted(home) == sent
    moved = bodies(home.queue("r"))
    home.crash()
    moved_counts: set[int] = set()
    for events, event in enumerate(disk.events[recorded:]):
        for kept in (0.0, 0.5, 1.0):
            after = check_crash(tmp_path, f"{events}-{kept}", before.crashed(random, kept), sent)
            assert after == moved[: len(after)]
            moved_counts.add(len(after))
        before.replay(event)
    assert check_crash(tmp_path, "end", before.crashed(random, 0.0), sent) == moved
    # The crashes happened before, during and after the move.
    assert 0 in moved_counts
    assert len(moved_counts) > 1


def check_crash(tmp_path: Path, name: str, disk: SimulatedDisk, sent: list[bytes]) -> list[bytes]:
    """Check that each message is in one queue after a crash; return the moved messages."""
    shutil.copytree(tmp_path / "catalog", tmp_path / name)
    # In the simulated disk, the log has the path of the first broker.
    moved = SimulatedDisk(
        {
            path.replace(str(tmp_path / "data"), str(tmp_path / name), 1): data
            for path, data in disk.contents().items()
        }
    )
    home = Home(tmp_path / name, disk=moved)
    assert counted(home) == sent, name
    after = bodies(home.queue("r"))
    home.crash()
    return after
