"""A producer belongs to its user: other users cannot use up its sequence numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.identity import Identity
from broker.broker import DELETIONS_PER_SLICE, SLICE_PAUSE_MS
from broker.routing.deduplication import (
    PRODUCERS_MAX,
    REMOVALS_PER_SLICE,
    NumberedPublication,
    owner_of,
)
from broker.store.checkpoint import Checkpointing
from broker.store.entries import Sequenced, producer_scope, scope_parts
from tests.clients import Amqp, World
from tests.store.homes import Home
from tests.wire.mqtt5.client import Client5
from tests.wire.mqtt5.client import publish as publish5
from trellis.auth.settings_users import AnonymousIdentity

LAST: Final = 2**63 - 1
ACK, NACK = "Basic.Ack", "Basic.Nack"


def queue(world: World, room: int = 1_000) -> None:
    """Declare the queue `q` for at most `room` messages of AMQP and MQTT clients."""
    limit = {"x_max_length": room, "x_overflow": "reject-publish"}
    world.amqp().queue("q", "amq.topic", "a", durable=True, **limit)


def add_users(world: World, *names: str) -> None:
    for name in names:
        world.guests.identities[name] = Identity(name)


def publisher(world: World, user: str) -> Amqp:
    client = world.amqp(user=user)
    client.send(spec.Confirm.Select())
    return client


def offer(client: Amqp, sequence: int, producer: str = "p") -> str:
    """Publish a numbered message; return the name of the broker's answer."""
    headers = {"x-trellis-producer": producer, "x-trellis-sequence": sequence}
    body = f"{producer} {sequence}".encode()
    [answer] = client.publish("amq.topic", "a", body, delivery_mode=2, headers=headers)
    return str(answer.name)


def message5(body: bytes, qos: int, sequence: int, **options: Any) -> bytes:
    """Return an MQTT 5 PUBLISH packet with a sequence number of the producer `p`."""
    user = [("x-trellis-producer", "p"), ("x-trellis-sequence", str(sequence))]
    return publish5("a", body, qos, user_properties=user, **options)


def client5(world: World, user: str, name: str = "") -> Client5:
    return Client5(world, name or user, username=user, password=b"guest")


def drained(world: World) -> list[bytes]:
    """Remove all messages from the queue, and return their bodies."""
    client = world.amqp()
    bodies: list[bytes] = []
    while got := client.bodies(client.send(spec.Basic.Get(queue="q", no_ack=True))):
        bodies += got
    return bodies


# -- other users


def test_another_user_cannot_use_up_the_numbers_of_an_amqp_producer() -> None:
    world = World()
    queue(world)
    add_users(world, "ann", "bob")
    ann, bob = publisher(world, "ann"), publisher(world, "bob")
    assert offer(ann, 1) == ACK
    assert offer(bob, LAST) == ACK
    assert [offer(ann, 2), offer(ann, 3), offer(ann, 2)] == [ACK, ACK, ACK]
    assert offer(bob, LAST) == ACK
    assert drained(world) == [b"p 1", b"p %d" % LAST, b"p 2", b"p 3"]
    assert world.fates() == {"routed": 4, "repeated": 2}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_another_user_cannot_use_up_the_numbers_of_an_mqtt_5_producer(qos: int) -> None:
    world = World()
    queue(world)
    add_users(world, "ann", "bob")
    ann, bob = client5(world, "ann"), client5(world, "bob")
    ann.send(message5(b"1", qos, 1, retain=True))
    bob.send(message5(b"bob", qos, LAST))
    ann.send(message5(b"2", qos, 2, packet_id=2, retain=True))
    ann.send(message5(b"1", qos, 1, packet_id=3, retain=True))
    assert drained(world) == [b"1", b"bob", b"2"]
    kept = world.vhost.retained.get("a")
    assert kept is not None and kept.body == b"2"
    assert world.fates() == {"routed": 3, "repeated": 1}


def test_another_user_of_the_other_protocol_has_other_producers() -> None:
    world = World()
    queue(world)
    add_users(world, "ann", "bob")
    client5(world, "bob").send(message5(b"bob", 1, LAST))
    client5(world, "ann").send(message5(b"ann", 1, 1))
    ann = publisher(world, "ann")
    assert [offer(ann, 1), offer(ann, 2)] == [ACK, ACK]
    assert drained(world) == [b"bob", b"ann", b"p 2"]


def test_the_numbers_in_a_transaction_belong_to_its_user() -> None:
    world = World()
    queue(world)
    add_users(world, "ann", "bob")
    bob = world.amqp(user="bob")
    bob.send(spec.Tx.Select())
    headers = {"x-trellis-producer": "p", "x-trellis-sequence": LAST}
    bob.publish("amq.topic", "a", b"bob", headers=headers)
    bob.send(spec.Tx.Commit())
    assert offer(publisher(world, "ann"), 1) == ACK
    assert drained(world) == [b"bob", b"p 1"]


def test_a_refused_number_of_another_user_does_not_hold_a_producer_back() -> None:
    world = World()
    queue(world, room=1)
    add_users(world, "ann", "bob")
    ann, bob = publisher(world, "ann"), publisher(world, "bob")
    assert [offer(ann, 1), offer(bob, 0)] == [ACK, NACK]
    assert drained(world) == [b"p 1"]
    assert offer(ann, 2) == ACK and drained(world) == [b"p 2"]
    assert offer(bob, 1) == NACK, "bob must publish his refused message first"
    assert [offer(bob, 0), drained(world), offer(bob, 1)] == [ACK, [b"p 0"], ACK]


def test_clients_without_a_user_name_are_not_the_user_anonymous() -> None:
    world = World()
    queue(world)
    for rules in ([], ["allow all #"]):
        anonymous = AnonymousIdentity(rules)
        anonymous.anonymous = True
        world.guests.identities["guest"] = anonymous
        add_users(world, "anonymous")
        name = f"p{len(rules)}"
        user = [("x-trellis-producer", name), ("x-trellis-sequence", str(LAST))]
        Client5(world, name).send(publish5("a", b"none", 1, user_properties=user))
        assert offer(publisher(world, "anonymous"), 1, name) == ACK
        world.guests.identities["guest"] = Identity("guest")
        assert drained(world) == [b"none", f"{name} 1".encode()]


@given(
    st.lists(
        st.tuples(st.booleans(), st.text(st.sampled_from("\0/ab\udc80é"), max_size=300)),
        max_size=30,
    )
)
def test_each_user_has_its_own_scope_within_the_bound(users: list[tuple[bool, str]]) -> None:
    users_by_scope: dict[str, tuple[bool, str]] = {}
    for anonymous, name in users:
        identity = Identity(name)
        identity.anonymous = anonymous
        for vhost in ("/", "a", "/a"):
            scope = producer_scope(vhost, owner_of(identity))
            assert scope_parts(scope) == (vhost, owner_of(identity))
            assert len(scope.encode()) <= 255 + 1 + 255 and scope != vhost
            user = (True, vhost) if anonymous else (False, f"{vhost}\0{name}")
            assert users_by_scope.setdefault(scope, user) == user


# -- sequence numbers of earlier versions


def older(tmp_path: Path, *numbers: tuple[str, int]) -> Home:
    """Return a broker on a data directory with sequence numbers that an earlier version stored."""
    home = Home(tmp_path / "d")
    queue(home)
    for producer, sequence in numbers:
        home.store.append(Sequenced("/", producer, sequence), None)
    home.turn()
    home.crash()
    return again(home)


def again(home: Home, *users: str) -> Home:
    """Crash a broker, and start another one on its data directory."""
    home.crash()
    home = Home(home.directory)
    add_users(home, "ann", "bob", *users)
    return home


def test_a_number_without_a_user_counts_for_all_users_until_they_exceed_it(tmp_path: Path) -> None:
    home = again(older(tmp_path, ("p", 5), ("q", 7)))
    assert home.vhost.producers.unowned == {"p": 5, "q": 7}
    ann = publisher(home, "ann")
    assert [offer(ann, 4), offer(ann, 5)] == [ACK, ACK] and home.fates() == {"repeated": 2}
    assert [offer(ann, 6), offer(ann, 8), offer(ann, 7)] == [ACK, ACK, ACK]
    assert drained(home) == [b"p 6", b"p 8"]
    for _ in range(2):
        bob = publisher(home, "bob")
        assert [offer(bob, 5), drained(home)] == [ACK, []]
        home = again(home)
    bob = publisher(home, "bob")
    assert [offer(bob, 6), offer(bob, 6), drained(home)] == [ACK, ACK, [b"p 6"]]
    ann = publisher(home, "ann")
    assert [offer(ann, 8), offer(ann, 9), drained(home)] == [ACK, ACK, [b"p 9"]]
    home = again(home)
    assert home.vhost.producers.unowned == {"p": 5, "q": 7}
    assert home.vhost.producers.last.by_owner == {"bob": {"p": 6}, "ann": {"p": 9}}
    home.crash()


def test_the_larger_number_counts_if_an_earlier_version_ran_in_between(tmp_path: Path) -> None:
    home = older(tmp_path)
    add_users(home, "ann")
    assert offer(publisher(home, "ann"), 3) == ACK
    home.store.append(Sequenced("/", "p", 9), None)
    home.turn()
    home = again(home)
    assert drained(home) == [b"p 3"]
    ann = publisher(home, "ann")
    assert [offer(ann, 8), offer(ann, 9), drained(home)] == [ACK, ACK, []]
    assert [offer(ann, 10), drained(home)] == [ACK, [b"p 10"]]
    home.crash()


def test_records_name_the_user_and_earlier_records_do_not(tmp_path: Path) -> None:
    home = older(tmp_path, ("p", 5))
    add_users(home, "ann")
    assert offer(publisher(home, "ann"), 6) == ACK
    text = "\n".join(home.records())
    assert "sequenced vhost=/ producer='p' sequence=5" in text.replace("  ", " ")
    assert "sequenced vhost=/ user='ann' producer='p' sequence=6" in text
    home.crash()


def test_numbers_of_users_survive_a_checkpoint(tmp_path: Path) -> None:
    home = older(tmp_path, ("p", 5))
    add_users(home, "ann", "bob")
    for user, sequence in (("ann", 6), ("bob", 8), ("ann", 7)):
        assert offer(publisher(home, user), sequence) == ACK
    for _ in range(2):
        home = again(home)
        home.amqp().publish("", "q", b"x", delivery_mode=2)
        log = home.opened.store.log
        Checkpointing(log, log.sealed(), set(home.opened.store.holder_numbers)).run()
    home = again(home)
    assert home.vhost.producers.unowned == {"p": 5}
    assert home.vhost.producers.last.by_owner == {"bob": {"p": 8}, "ann": {"p": 7}}
    home.crash()


# -- eviction


def record(home: World, owner: str, *producers: str) -> None:
    for producer in producers:
        home.store.begin()
        home.vhost.producers.record(owner, NumberedPublication(producer, 7), None)
        home.store.commit()


def order(home: World) -> dict[str, list[tuple[str, int]]]:
    """Return owner -> [(producer, sequence number)], the producer to evict next in front."""
    by_owner = home.vhost.producers.last.by_owner
    return {owner: list(values.items()) for owner, values in by_owner.items()}


def test_a_user_with_many_producers_evicts_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    mine = [f"m{number}" for number in range(10)]
    record(home, "ann", *mine)
    for first in range(0, PRODUCERS_MAX, 10_000):
        record(home, "bob", *(f"p{number}" for number in range(first, first + 10_000)))
        home.turn()
    record(home, "bob", "p10", "last")
    home.turn()
    expected = order(home)
    assert [name for name, _ in expected["ann"]] == mine
    bobs = [name for name, _ in expected["bob"]]
    assert bobs[0] == "p12" and bobs[-2:] == ["p10", "last"]
    assert len(bobs) == PRODUCERS_MAX - 10 == home.vhost.producers.last.size - 10
    home = again(home)
    assert order(home) == expected
    record(home, "ann", "one more")
    assert [name for name, _ in order(home)["ann"]] == [*mine, "one more"]
    assert order(home)["bob"] == expected["bob"][1:]
    home.crash()


def test_a_user_with_many_refused_numbers_evicts_its_own() -> None:
    producers = World().vhost.producers
    producers.refuse("ann", NumberedPublication("p", 3))
    for number in range(PRODUCERS_MAX + 1):
        producers.refuse("bob", NumberedPublication(f"p{number}", 3))
    assert producers.refused.size == PRODUCERS_MAX
    assert producers.is_held_back("ann", NumberedPublication("p", 4))
    assert not producers.is_held_back("bob", NumberedPublication("p1", 4))
    assert producers.is_held_back("bob", NumberedPublication("p2", 4))


def test_numbers_without_a_user_are_evicted_first() -> None:
    world = World()
    producers = world.vhost.producers
    for number in range(PRODUCERS_MAX - 1):
        producers.restore(None, f"p{number}", 7)
    record(world, "ann", "new", "p5", "p5", "other")
    assert list(producers.unowned)[:6] == ["p1", "p2", "p3", "p4", "p6", "p7"]
    assert producers.last.by_owner == {"ann": {"new": 7, "p5": 7, "other": 7}}
    assert producers.last.size + len(producers.unowned) == PRODUCERS_MAX


# -- deleted users


def with_users(home: Home) -> None:
    """Store the users ann and bob in the broker."""
    for name in ("ann", "bob"):
        home.broker.users.define(name, "hash", [])
    home.turn()


def delete_user(home: Home, name: str) -> None:
    home.guests.identities.pop(name, None)
    assert home.broker.users.remove(name)


def test_a_new_user_does_not_inherit_the_numbers_of_a_deleted_user(tmp_path: Path) -> None:
    home = older(tmp_path)
    add_users(home, "ann", "bob")
    with_users(home)
    names = [f"p{number}" for number in range(2 * REMOVALS_PER_SLICE + 1)]
    record(home, "ann", *names)
    record(home, "bob", "p1")
    delete_user(home, "ann")
    assert home.vhost.producers.last.by_owner == {"bob": {"p1": 7}}
    # A new user of this name publishes before the old numbers are removed from the store.
    add_users(home, "ann")
    ann = publisher(home, "ann")
    assert [offer(ann, 0, "p0"), drained(home)] == [ACK, [b"p0 0"]]
    while not home.broker.agenda.idle:
        home.turn()
    home = again(home)
    assert home.vhost.producers.last.by_owner == {"bob": {"p1": 7}, "ann": {"p0": 0}}
    home.crash()


def test_the_last_messages_of_a_deleted_user_do_not_concern_a_new_user() -> None:
    world = World()
    queue(world)
    add_users(world, "ann")
    world.broker.users.define("ann", "hash", [])
    last = publisher(world, "ann")
    world.guests.identities.pop("ann")
    assert world.broker.users.remove("ann")
    # The connection of the deleted user is closed in a later turn.
    assert [offer(last, LAST), drained(world)] == [ACK, [b"p %d" % LAST]]
    world.broker.users.define("ann", "hash", [])
    add_users(world, "ann")
    assert [offer(publisher(world, "ann"), 0), drained(world)] == [ACK, [b"p 0"]]
    world.broker.users.define("ann", "hash", ["management"])
    assert world.vhost.producers.last.by_owner == {"ann": {"p": 0}}


def test_a_crash_during_the_removal_leaves_no_number_for_a_new_user(tmp_path: Path) -> None:
    home = older(tmp_path)
    with_users(home)
    record(home, "ann", *(f"p{number}" for number in range(3 * REMOVALS_PER_SLICE)))
    record(home, "ann", "p")
    home.turn()
    delete_user(home, "ann")
    home.turn()
    assert "ann" not in home.vhost.producers.last.by_owner and not home.broker.agenda.idle
    home = again(home)
    assert "ann" not in home.broker.users.by_name
    assert len(home.vhost.producers.last.by_owner["ann"]) > REMOVALS_PER_SLICE
    home.guests.identities.pop("ann")
    home.broker.users.define("ann", "hash", [])
    add_users(home, "ann")
    ann = publisher(home, "ann")
    assert [offer(ann, 0, "p0"), drained(home)] == [ACK, [b"p0 0"]]
    while not home.broker.agenda.idle:
        home.turn()
    home = again(home)
    assert home.vhost.producers.last.by_owner == {"ann": {"p0": 0}}
    home.crash()


def test_a_user_that_the_settings_define_keeps_its_numbers() -> None:
    world = World()
    add_users(world, "ann")
    world.broker.users.define("ann", "hash", [])
    record(world, "ann", "p")
    world.broker.users.define("ann", "hash", ["management"])
    assert world.broker.users.remove("ann")
    world.turn()
    assert world.vhost.producers.last.by_owner == {"ann": {"p": 7}}


def test_a_vhost_that_is_deleted_after_a_user_leaves_no_number(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    with_users(home)
    vhost = home.broker.create_vhost("v")
    vhost.producers.restore(None, "old", 1)
    for number in range(2 * DELETIONS_PER_SLICE):
        for owner in ("ann", "bob"):
            vhost.producers.record(owner, NumberedPublication(f"p{number}", 7), None)
    home.turn()
    delete_user(home, "ann")
    home.broker.close_vhost("v")
    while "v" in home.broker.vhosts:
        home.sleep(SLICE_PAUSE_MS)
    home.turn()
    home = again(home)
    assert home.opened.store.sequences == {}
    home.crash()
