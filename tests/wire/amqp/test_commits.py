"""Large commits are prepared step by step over several turns, and then applied in one turn.

So all effects of a commit happen, or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pamqp.body
import pamqp.commands as spec
import pytest

from broker.access.rules import UserPermissions
from broker.queues.policies import policy_of
from broker.routing.plan_search import RESTARTS
from protocols.amqp.channel.commit import PARTS_PER_SLICE
from protocols.amqp.errors import AmqpError
from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.speech import names, refusal

B, Q, T = spec.Basic, spec.Queue, spec.Tx
#: Number of publications in a commit that takes three slices to prepare.
MANY = 3 * PARTS_PER_SLICE // 2


def transacting(*queues: str, world: World | None = None) -> Amqp:
    """Return a client in tx mode that has declared these queues."""
    client = (world or World()).amqp()
    for name in queues:
        client.queue(name)
    client.send(T.Select())
    return client


def say(client: Amqp, messages: list[bytes]) -> None:
    """Send encoded messages in chunks of 500; run turns until the broker has handled each chunk."""
    for at in range(0, len(messages), 500):
        client.connection.receive_data(b"".join(messages[at : at + 500]))
        client.world.settle(client.connection)


def fill(client: Amqp, count: int, queue: str = "q", **properties: Any) -> None:
    say(client, [publication("", queue, b"%d" % n, **properties) for n in range(count)])


def begin(client: Amqp, *methods: Any) -> None:
    """Send methods in one chunk, without running a turn of the broker."""
    client.connection.receive_data(b"".join(marshal(1, method) for method in methods))


def depth(client: Amqp, queue: str = "q") -> int:
    return int(client.world.queue(queue).depth)


def turns(client: Amqp, done: Callable[[], bool]) -> int:
    """Run turns of the agenda until `done`, and return their number."""
    for count in itertools.count():
        if done():
            return count
        assert count < 100, "no end"
        client.world.broker.agenda.turn()
    raise AssertionError


def test_a_large_commit_has_no_effect_before_its_last_slice_and_all_effects_in_one_turn() -> None:
    client = transacting("q")
    fill(client, MANY)
    begin(client, T.Commit(), B.Qos(0, 10, False))
    seen = [depth(client)]
    for _ in range(100):
        if client.world.broker.agenda.idle:
            break
        assert client.connection.stalled and client.connection.data_to_send() == b""
        client.world.broker.agenda.turn()
        seen.append(depth(client))
    assert seen == sorted(seen) and set(seen) == {0, MANY} and seen.count(0) >= 2
    assert names(client.read()) == ["Tx.CommitOk", "Basic.QosOk"]
    client.send(Q.Bind(queue="q", exchange="amq.direct"), T.Select())
    reader = client.world.amqp()
    for number in (0, 1, 2):
        [_, _, body] = reader.send(B.Get(queue="q", no_ack=True))
        assert body.value == b"%d" % number
    client.world.fates()


def test_other_clients_are_served_while_a_large_commit_is_prepared() -> None:
    client = transacting("q")
    other = client.world.amqp()
    fill(client, MANY)
    begin(client, T.Commit())
    assert names(other.send(B.Get(queue="q"))) == ["Basic.GetEmpty"]
    client.world.settle(client.connection)
    assert names(client.read()) == ["Tx.CommitOk"] and depth(client) == MANY


@pytest.mark.parametrize("ending", ["connection lost", "channel closed by the broker"])
def test_a_channel_that_ends_before_the_last_slice_leaves_nothing_of_the_commit(
    ending: str,
) -> None:
    client = transacting("q", "old")
    client.world.amqp().publish("", "old", b"delivered")
    client.send(B.Get(queue="old"), B.Ack(1))
    fill(client, MANY)
    begin(client, T.Commit())
    assert client.connection.stalled
    if ending == "connection lost":
        client.connection.on_closed()
    else:
        client.connection.close_channel(1, AmqpError(403, "refused"), 0)
    client.world.settle(client.connection)
    assert (depth(client), depth(client, "old")) == (0, 1)
    assert client.world.fates() == {"routed": 1}
    if ending != "connection lost":
        assert not client.connection.stalled
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())
        assert names(client.send(B.Get(queue="old"))) == [
            "Basic.GetOk",
            "ContentHeader",
            "ContentBody",
        ]


def permit(world: World, *rules: str, write: str = ".*") -> None:
    """Change the permissions of the user guest, and apply them to its connections."""
    permissions = UserPermissions("guest", "/", (".*", write, ".*"), rules)
    world.guests.identities["guest"] = permissions.identity("")
    world.review()


#: A message of a transaction, and permissions with which its user may not publish it any more.
REVOKED: list[tuple[str, str, dict[str, Any], tuple[str, ...], str]] = [
    ("", "q", {}, (), "^amq.topic$"),
    ("amq.topic", "a.1", {}, (), "^amq.default$"),
    ("amq.topic", "a.1", {}, ("allow all b/#",), ".*"),
    ("amq.topic", "b.1", {"headers": {"CC": ["a.1"]}}, ("allow all b/#",), ".*"),
    ("amq.topic", "b.1", {"headers": {"BCC": ["a.1"]}}, ("allow all b/#",), ".*"),
]


@pytest.mark.parametrize(("exchange", "key", "properties", "rules", "write"), REVOKED)
def test_a_commit_after_a_permission_was_revoked_has_no_effect(
    exchange: str, key: str, properties: dict[str, Any], rules: tuple[str, ...], write: str
) -> None:
    client = transacting("q", "old")
    client.send(Q.Bind(queue="q", exchange="amq.topic", routing_key="a.#"))
    client.world.amqp().publish("", "old", b"delivered")
    client.send(B.Get(queue="old"), B.Ack(1))
    client.publish(exchange, key, b"x", **properties)
    permit(client.world, *rules, write=write)
    assert refusal(client.send(T.Commit()))[:2] == ("channel", 403)
    assert (depth(client), depth(client, "old")) == (0, 1)
    # The permissions of the time of the commit decide: those in between have no effect.
    client.send(spec.Channel.CloseOk(), spec.Channel.Open(), T.Select())
    permit(client.world)
    client.publish(exchange, key, b"x", **properties)
    permit(client.world, *rules, write=write)
    permit(client.world)
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    assert depth(client) == 1
    client.world.fates()


def test_a_permission_of_a_deleted_exchange_is_checked_by_its_name() -> None:
    client = transacting("q")
    for name in ("kept", "revoked"):
        client.send(spec.Exchange.Declare(exchange=name), Q.Bind(queue="q", exchange=name))
        client.publish(name, "", b"x")
        client.send(spec.Exchange.Delete(exchange=name))
        permit(client.world, write="^(kept|q)$")
        answer = client.send(T.Commit())
        assert depth(client) == 1
        permit(client.world)
    assert refusal(answer)[:2] == ("channel", 403)


def test_a_permission_that_is_revoked_while_a_large_commit_is_prepared() -> None:
    client = transacting("q")
    fill(client, MANY)
    begin(client, T.Commit(), B.Qos(0, 10, False))
    assert client.connection.stalled and depth(client) == 0
    permit(client.world, write="^none$")
    client.world.settle(client.connection)
    assert refusal(client.read())[:2] == ("channel", 403)
    assert depth(client) == 0 and not client.connection.stalled
    assert client.world.fates() == {}


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (publication("nowhere", "q", b"x"), 404),
        (publication("", "q", b"x", expiration="soon"), 406),
        (marshal(1, B.Ack(77)), 406),
        (marshal(1, B.Ack(1)) * 2, 406),
    ],
)
def test_an_error_in_the_last_part_leaves_nothing_of_a_large_transaction(
    last: bytes, error: int
) -> None:
    client = transacting("q", "old")
    client.world.amqp().publish("", "old", b"delivered")
    client.send(B.Get(queue="old"))
    fill(client, MANY)
    client.connection.receive_data(last + marshal(1, T.Commit()))
    client.world.settle(client.connection)
    assert refusal(client.read())[1] == error
    assert (depth(client), depth(client, "old")) == (0, 1)
    client.world.fates()


def test_a_full_queue_in_the_last_part_refuses_its_message_and_the_others_are_delivered() -> None:
    world = World()
    client = world.amqp()
    client.queue("full", x_max_length=0, x_overflow="reject-publish")
    client = transacting("q", world=world)
    fill(client, MANY)
    client.publish("", "full", b"x")
    begin(client, T.Commit())
    world.settle(client.connection)
    assert names(client.read()) == ["Tx.CommitOk"]
    assert (depth(client), depth(client, "full")) == (MANY, 0)
    assert world.fates() == {"routed": MANY, "refused": 1}


@pytest.mark.parametrize("change", ["deleted", "unbound", "bound", "policy"])
def test_a_change_between_two_slices_counts_as_before_the_commit(change: str) -> None:
    client = transacting("q", "r", "late")
    other = client.world.amqp()
    for name in ("q", "r"):
        other.send(Q.Bind(queue=name, exchange="amq.fanout"))
    say(client, [publication("amq.fanout", "k", b"x")] * (MANY // 2))
    begin(client, T.Commit())
    client.world.broker.agenda.turn()
    assert client.connection.stalled and depth(client) == 0
    if change == "deleted":
        begin(other, Q.Delete(queue="r"))
    elif change == "unbound":
        begin(other, Q.Unbind(queue="r", exchange="amq.fanout"))
    elif change == "bound":
        begin(other, Q.Bind(queue="late", exchange="amq.fanout"))
    else:
        client.world.vhost.applied_policies.set_policy(
            policy_of("/", "p", {"pattern": "^r$", "definition": {"message-ttl": 60_000}})
        )
    client.world.settle(client.connection, other.connection)
    assert names(client.read()) == ["Tx.CommitOk"]
    assert (depth(client), depth(client, "late")) == (MANY // 2, 0)
    if change == "deleted":
        assert "r" not in client.world.vhost.queues
    else:
        # A message goes to the queues that were bound when it was published and exist at the
        # commit.
        assert depth(client, "r") == MANY // 2
    client.world.fates()


def test_a_commit_whose_queues_are_deleted_again_and_again_ends() -> None:
    count = RESTARTS + 4
    client = transacting("q", *(f"d{number}" for number in range(count)))
    other = client.world.amqp()
    for name in ["q", *(f"d{number}" for number in range(count))]:
        other.send(Q.Bind(queue=name, exchange="amq.fanout"))
    say(client, [publication("amq.fanout", "k", b"x")] * 1_000)
    begin(client, T.Commit())
    deleted = 0
    while client.connection.stalled and depth(client) == 0:
        if deleted < count:
            begin(other, Q.Delete(queue=f"d{deleted}"))
            deleted += 1
        client.world.broker.agenda.turn()
    client.world.settle(client.connection, other.connection)
    assert names(client.read()) == ["Tx.CommitOk"] and deleted > RESTARTS
    assert depth(client) == 1_000
    for number in range(deleted, count):
        assert depth(client, f"d{number}") == 1_000
    client.world.fates()


@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_many_settlements_of_a_commit_happen_together_and_requeued_messages_keep_their_order(
    how: str,
) -> None:
    client = transacting("q")
    fill(client.world.amqp(), MANY)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    while client.world.queue("q").unacked < MANY:
        client.connection.data_to_send()
        client.connection.resume_deliveries()
        client.world.turn()
    client.send(B.Cancel(consumer_tag="t"))
    settled = B.Ack(0, True) if how == "ack" else B.Nack(0, True, how == "requeue")
    client.world.settle(client.connection)
    begin(client, settled, T.Commit())
    client.world.settle(client.connection)
    assert "Tx.CommitOk" in names(client.read())
    assert client.world.queue("q").unacked == 0
    if how == "requeue":
        assert depth(client) == MANY
        reader = client.world.amqp()
        bodies = [
            frame.value
            for _ in range(50)
            for frame in reader.send(B.Get(queue="q", no_ack=True))
            if isinstance(frame, pamqp.body.ContentBody)
        ]
        assert bodies == [b"%d" % number for number in range(50)]
    else:
        fate = "acknowledged" if how == "ack" else "rejected"
        assert client.world.copies() == {fate: MANY} and depth(client) == 0


def test_the_reply_of_a_large_commit_waits_for_the_disk() -> None:
    world = World()
    client = world.amqp()
    client.queue("d", durable=True)
    client = transacting(world=world)
    fill(client, MANY, "d", delivery_mode=2)
    world.slow_disk = True
    begin(client, T.Commit())
    assert turns(client, lambda: depth(client, "d") == MANY) > 1
    assert names(client.read()) == [] and client.connection.stalled
    world.durable()
    assert names(client.read()) == ["Tx.CommitOk"] and not client.connection.stalled
