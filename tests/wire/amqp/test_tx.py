"""Transactions: no effect before the commit, all effects after it, and none after a rollback."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.limits import BrokerLimits
from broker.queues.policies import policy_of
from tests.clients import Amqp, World, publication
from tests.wire.amqp.speech import names, refusal

B, Q, T = spec.Basic, spec.Queue, spec.Tx


def transacting(world: World | None = None) -> Amqp:
    """Return a client in tx mode, with a transient queue `q` and a durable one `d`."""
    client = (world or World()).amqp()
    client.queue("q")
    client.queue("d", durable=True)
    assert names(client.send(T.Select())) == ["Tx.SelectOk"]
    return client


def depth(client: Amqp, name: str = "q") -> int:
    return int(client.world.queue(name).depth)


def got(client: Amqp, name: str = "q", no_ack: bool = False) -> tuple[int, bool, bytes] | None:
    """Return delivery tag, redelivered flag and body from basic.get; None if no message waits."""
    frames = client.send(B.Get(queue=name, no_ack=no_ack))
    if isinstance(frames[0], B.GetEmpty):
        return None
    return frames[0].delivery_tag, frames[0].redelivered, b"".join(client.bodies(frames))


@pytest.mark.parametrize("mode", [1, 2])
def test_publications_are_there_after_the_commit_in_their_order(mode: int) -> None:
    client = transacting()
    for body in (b"1", b"2", b"3"):
        assert client.publish("", "q", body, delivery_mode=mode) == []
        client.publish("", "d", body, delivery_mode=mode)
    assert depth(client) == depth(client, "d") == 0
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    assert [got(client, queue, True) for queue in ("q", "d") for _ in range(3)] == [
        (number, False, body) for number, body in enumerate((b"1", b"2", b"3") * 2, start=1)
    ]
    assert client.world.fates() == {"routed": 6}


def test_a_rollback_forgets_publications_and_the_next_transaction_begins_empty() -> None:
    client = transacting()
    client.publish("", "q", b"never")
    assert names(client.send(T.Rollback())) == ["Tx.RollbackOk"]
    client.publish("", "q", b"kept")
    assert names(client.send(T.Commit(), T.Commit())) == ["Tx.CommitOk", "Tx.CommitOk"]
    assert got(client) == (1, False, b"kept") and got(client) is None
    assert client.world.fates() == {"routed": 1}


def test_commit_settles_the_deliveries() -> None:
    client = transacting()
    other = client.world.amqp()
    for body in (b"acked", b"rejected", b"requeued"):
        other.publish("", "q", body)
    assert [got(client) for _ in range(3)] == [
        (1, False, b"acked"),
        (2, False, b"rejected"),
        (3, False, b"requeued"),
    ]
    client.send(B.Ack(1), B.Reject(2, requeue=False), B.Nack(3, requeue=True))
    assert client.world.queue("q").unacked == 3 and depth(client) == 0
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    assert client.world.queue("q").unacked == 0 and got(client) == (4, True, b"requeued")
    assert client.world.copies() == {"acknowledged": 1, "rejected": 1}


def test_rollback_makes_settled_deliveries_outstanding_again_under_their_tags() -> None:
    client = transacting()
    other = client.world.amqp()
    for body in (b"1", b"2", b"3"):
        other.publish("", "q", body)
    for _ in range(3):
        got(client)
    client.send(B.Ack(2, multiple=True), B.Nack(3, requeue=True))
    assert names(client.send(T.Rollback())) == ["Tx.RollbackOk"]
    assert client.world.queue("q").unacked == 3
    assert names(client.send(B.Ack(3, multiple=True), T.Commit())) == ["Tx.CommitOk"]
    assert client.world.queue("q").unacked == 0 and client.world.copies() == {"acknowledged": 3}


def test_put_back_in_one_transaction_goes_back_in_order() -> None:
    client = transacting()
    other = client.world.amqp()
    for body in (b"1", b"2", b"3"):
        other.publish("", "q", body)
    for _ in range(3):
        got(client)
    client.send(
        B.Nack(1, requeue=True), B.Nack(3, requeue=True), B.Nack(2, requeue=True), T.Commit()
    )
    assert [got(client) for _ in range(3)] == [(4, True, b"1"), (5, True, b"2"), (6, True, b"3")]


@pytest.mark.parametrize(
    "again", [B.Ack(1), B.Reject(1), B.Nack(1), B.Ack(1, multiple=True), B.Ack(2)]
)
def test_a_tag_is_settled_once_in_a_transaction_too(again: Any) -> None:
    client = transacting()
    client.world.amqp().publish("", "q", b"x")
    got(client)
    refused = client.send(B.Ack(1), again)
    assert refusal(refused)[:3] == (
        "channel",
        406,
        f"PRECONDITION_FAILED - unknown delivery tag {again.delivery_tag}",
    )
    assert depth(client) == 1  # The error closes the channel, which ends its transaction.


def test_tag_0_means_all_that_is_outstanding_and_not_settled_yet() -> None:
    client = transacting()
    for _ in range(3):
        client.world.amqp().publish("", "q", b"x")
        got(client)
    assert names(
        client.send(
            B.Nack(2, requeue=True), B.Ack(0, multiple=True), B.Ack(0, multiple=True), T.Commit()
        )
    ) == ["Tx.CommitOk"]
    assert client.world.copies() == {"acknowledged": 2} and depth(client) == 1


def test_recover_requeues_deliveries_that_the_transaction_has_not_settled() -> None:
    client = transacting()
    for body in (b"1", b"2", b"3"):
        client.world.amqp().publish("", "q", body)
        got(client)
    assert names(client.send(B.Ack(2), B.Recover(requeue=True))) == ["Basic.RecoverOk"]
    assert depth(client) == 2 and client.world.queue("q").unacked == 1
    client.send(T.Commit())
    assert client.world.copies() == {"acknowledged": 1}


def test_returns_come_before_commit_ok() -> None:
    client = transacting()
    assert client.publish("", "nowhere", b"back", mandatory=True) == []
    frames = client.send(T.Commit())
    assert names(frames) == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
        "Tx.CommitOk",
    ] and client.bodies(frames) == [b"back"]
    assert client.world.fates() == {"unroutable": 1}


def test_publications_are_checked_at_once() -> None:
    client = transacting()
    assert refusal(client.publish("nothing", "q", b"x"))[1] == 404
    client = transacting()
    assert refusal(client.publish("", "q", b"x", expiration="soon"))[1] == 406
    assert depth(client) == 0


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_message_with_expiration_begins_to_age_at_the_commit(delivery_mode: int) -> None:
    client = transacting()
    world = client.world
    client.queue("kept", durable=True)
    client.publish("", "kept", b"x", expiration="1000", delivery_mode=delivery_mode)
    world.sleep(5_000)
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    world.sleep(999)
    assert world.queue("kept").depth == 1
    world.sleep(1)
    assert world.queue("kept").depth == 0 and world.copies() == {"expired": 1}


def test_a_message_whose_expiration_is_0_expires_at_the_commit() -> None:
    client = transacting()
    client.publish("", "q", b"x", expiration="0")
    client.world.sleep(5_000)
    client.send(T.Commit())
    client.world.sleep(0)
    assert depth(client) == 0 and client.world.copies() == {"expired": 1}


def test_an_exchange_that_goes_before_the_commit_takes_only_its_own_with_it() -> None:
    client = transacting()
    other = client.world.amqp()
    other.send(spec.Exchange.Declare(exchange="e"))
    client.publish("e", "q", b"lost")
    client.publish("", "q", b"kept")
    other.send(spec.Exchange.Delete(exchange="e"))
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    assert got(client) == (1, False, b"kept") and depth(client) == 0


@pytest.mark.parametrize("headers", [None, {"CC": ["b"]}, {"BCC": ["b"]}])
def test_a_publication_goes_to_the_queues_of_its_time_that_are_left_at_the_commit(
    headers: Any,
) -> None:
    client = transacting()
    other = client.world.amqp()
    key = "b" if headers is None else "a"
    for name in ("goes", "stays", "comes", "leaves"):
        other.queue(name)
    for name in ("goes", "stays", "leaves"):
        other.send(Q.Bind(queue=name, exchange="amq.direct", routing_key="b"))
    client.publish("amq.direct", key, b"x", headers=headers)
    other.send(
        Q.Delete(queue="goes"),
        Q.Bind(queue="comes", exchange="amq.direct", routing_key="b"),
        Q.Unbind(queue="leaves", exchange="amq.direct", routing_key="b"),
    )
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    assert [depth(client, name) for name in ("stays", "comes", "leaves")] == [1, 0, 1]
    client.world.fates()


def test_a_publication_of_a_transaction_follows_a_queue_that_a_policy_has_replaced() -> None:
    client = transacting()
    client.publish("", "q", b"x")
    client.world.vhost.applied_policies.set_policy(
        policy_of("/", "lazy", {"pattern": "q", "definition": {"message-ttl": 60_000}})
    )
    client.world.settle(client.connection)
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]
    assert got(client) == (1, False, b"x")
    client.world.fates()


@pytest.mark.parametrize("method", [T.Commit(), T.Rollback()])
def test_no_transaction_ends_that_never_began(method: Any) -> None:
    client = World().amqp()
    assert refusal(client.send(method))[:3] == (
        "channel",
        406,
        "PRECONDITION_FAILED - channel is not transactional",
    )


def test_confirms_and_transactions_exclude_each_other() -> None:
    client = transacting()
    assert refusal(client.send(spec.Confirm.Select()))[1:3] == (
        406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
    )
    client = World().amqp()
    client.send(spec.Confirm.Select())
    assert refusal(client.send(T.Select()))[1:3] == (
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
    )


def test_selecting_twice_changes_nothing() -> None:
    client = transacting()
    client.publish("", "q", b"x")
    assert names(client.send(T.Select(), T.Commit())) == ["Tx.SelectOk", "Tx.CommitOk"]
    assert depth(client) == 1


def test_a_channel_that_closes_forgets_its_transaction() -> None:
    client = transacting()
    client.world.amqp().publish("", "q", b"old")
    got(client)
    client.publish("", "q", b"new")
    client.send(B.Ack(1), spec.Channel.Close(200, "", 0, 0))
    assert depth(client) == 1
    assert got(client.world.amqp()) == (1, True, b"old")


def test_other_channels_of_the_connection_go_on_as_before() -> None:
    client = transacting()
    client.send(spec.Channel.Open(), channel=2)
    client.publish("", "q", b"at once", channel=2)
    client.publish("", "q", b"later")
    assert depth(client) == 1
    client.send(T.Commit())
    assert depth(client) == 2


def test_commit_ok_waits_for_the_disk_also_when_nothing_was_published() -> None:
    client = transacting()
    client.world.amqp().publish("", "d", b"1", delivery_mode=2)
    got(client, "d")
    client.world.slow_disk = True
    client.send(B.Ack(1))
    assert client.send(T.Commit()) == []
    client.world.durable()
    assert names(client.read()) == ["Tx.CommitOk"]


def test_a_commit_without_durable_changes_does_not_wait() -> None:
    client = transacting()
    client.world.slow_disk = True
    client.publish("", "q", b"x", delivery_mode=2)
    assert names(client.send(T.Commit())) == ["Tx.CommitOk"]


def test_a_transaction_may_not_grow_for_ever() -> None:
    limits = BrokerLimits()
    limits.transaction = 1_400
    client = transacting(World(limits))
    client.publish("", "q", bytes(500))
    client.publish("", "q", bytes(500))
    client.send(T.Commit())
    client.publish("", "q", bytes(1_000))
    assert refusal(client.publish("", "q", bytes(500)))[:3] == (
        "connection",
        506,
        "RESOURCE_ERROR - the transaction has more than 1400 bytes: commit more often",
    )
    assert depth(client) == 2


def test_publications_cut_into_frames_belong_to_the_transaction_too() -> None:
    client = transacting()
    data = publication("", "q", b"a" * 5_000, frame_max=4_096)
    for at in range(0, len(data), 1_000):
        client.connection.receive_data(data[at : at + 1_000])
        assert client.read() == []
    assert depth(client) == 0
    client.send(T.Commit())
    assert got(client) == (1, False, b"a" * 5_000)
