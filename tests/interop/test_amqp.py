"""Tests of the broker with every AMQP library, each used as ordinary programs use it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker import BrokerProcess
from tests.interop import clients
from tests.interop.amqp_client import AmqpClient
from tests.interop.client import LoginRefused
from tests.interop.conftest import AmqpPeers

#: Headers with one value of each type that every library supports. The integers have each width
#: that libraries choose by size.
HEADERS: dict[str, Any] = {
    "text": "ä \N{SNOWMAN}",
    "empty": "",
    "true": True,
    "false": False,
    "zero": 0,
    "byte": -7,
    "short": 30_000,
    "long": -70_000,
    "list": ["a", 1, [True, {}]],
    "table": {"deeper": {"still": "ü", "number": 9}},
}
PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "näher",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "reading",
    "user_id": "guest",
    "app_id": "tests",
}


def test_publications_to_amq_topic_reach_consumers_of_every_library(
    amqp: AmqpClient, every_amqp: dict[str, AmqpClient], unique: str
) -> None:
    for name, consumer in every_amqp.items():
        consumer.declare_queue(f"{unique}-{name}")
        consumer.bind(f"{unique}-{name}", "amq.topic", f"{unique}.*.temperature")
        consumer.consume(f"{unique}-{name}")
    assert amqp.publish(b"passed by", f"{unique}.kitchen.humidity", "amq.topic") == "ack"
    assert amqp.publish(b"21.5", f"{unique}.kitchen.temperature", "amq.topic") == "ack"
    for consumer in every_amqp.values():
        got = consumer.receive()
        assert (got.body, got.exchange) == (b"21.5", "amq.topic")
        assert got.routing_key == f"{unique}.kitchen.temperature"
        assert not got.redelivered
        consumer.ack(got)


def test_unroutable_publication_is_confirmed_and_returned_only_if_mandatory(
    amqp: AmqpClient, unique: str
) -> None:
    assert amqp.publish(b"lost", unique) == "ack"
    assert amqp.publish(b"returned", unique, mandatory=True) == "returned"
    amqp.declare_queue(unique)
    assert amqp.publish(b"kept", unique, mandatory=True) == "ack"
    assert amqp.depth(unique) == 1


def test_publishing_to_a_missing_exchange_closes_the_channel(amqp: AmqpClient, unique: str) -> None:
    with amqp.refused(404, f"no exchange '{unique}' in vhost '/'"):
        amqp.publish(b"", "key", unique)
    assert amqp.publish(b"", unique) == "ack"


def test_rejected_message_is_requeued_or_removed(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_queue(unique)
    amqp.publish(b"0", unique)
    amqp.publish(b"1", unique)
    amqp.consume(unique)
    amqp.reject(amqp.receive(), requeue=False)
    amqp.reject(amqp.receive(), requeue=True)
    again = amqp.receive()
    assert (again.body, again.redelivered) == (b"1", True)
    amqp.ack(again)
    assert amqp.depth(unique) == 0


# kombu is left out, because py-amqp has no basic.nack.
@pytest.mark.parametrize("amqp_name", ["pika", "aio-pika", "amqplib"])
def test_nack_of_multiple_messages_requeues_them_in_order(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_queue(unique)
    for body in (b"0", b"1", b"2"):
        amqp.publish(body, unique)
    amqp.consume(unique)
    first, _, third = amqp.receive(), amqp.receive(), amqp.receive()
    amqp.nack(first, requeue=False)
    amqp.nack(third, multiple=True, requeue=True)
    for body in (b"1", b"2"):
        again = amqp.receive()
        assert (again.body, again.redelivered) == (body, True)
    amqp.ack(again, multiple=True)
    assert amqp.depth(unique) == 0


def test_prefetch_count_limits_unacknowledged_messages(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_queue(unique)
    for number in range(5):
        amqp.publish(b"%d" % number, unique)
    amqp.prefetch(2)
    amqp.consume(unique)
    first, second = amqp.receive(), amqp.receive()
    assert amqp.depth(unique) == 3
    amqp.ack(first)
    third = amqp.receive()
    assert amqp.depth(unique) == 2
    amqp.ack(third, multiple=True)
    assert [amqp.receive().body for _ in range(2)] == [b"3", b"4"]
    assert second.body == b"1"


def test_get_takes_one_message_at_a_time(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_queue(unique)
    assert amqp.get(unique) is None
    amqp.publish(b"one", unique)
    amqp.publish(b"two", unique)
    one = amqp.get(unique)
    assert one is not None
    assert (one.body, one.routing_key, one.redelivered) == (b"one", unique, False)
    amqp.reject(one, requeue=True)
    again = amqp.get(unique)
    assert again is not None
    assert (again.body, again.redelivered) == (b"one", True)
    amqp.ack(again)
    assert amqp.depth(unique) == 1


def test_unacknowledged_messages_are_requeued_when_the_connection_ends(
    amqp: AmqpClient, amqp_name: str, amqp_peer: AmqpPeers, unique: str
) -> None:
    other = amqp_peer(amqp_name)
    amqp.declare_queue(unique)
    amqp.publish(b"kept", unique)
    amqp.consume(unique)
    assert amqp.receive().body == b"kept"
    other.consume(unique)
    amqp.close()
    again = other.receive()
    assert (again.body, again.redelivered) == (b"kept", True)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic"])
def test_exchange_routes_from_its_declaration_to_its_deletion(
    amqp: AmqpClient, kind: str, unique: str
) -> None:
    key = "*.b" if kind == "topic" else "a.b"
    amqp.declare_exchange(unique, kind, durable=True)
    amqp.declare_exchange(unique, kind, durable=True)
    amqp.declare_exchange(unique, passive=True)
    amqp.declare_queue(unique)
    amqp.bind(unique, unique, key)
    assert amqp.publish(b"routed", "a.b", unique, mandatory=True) == "ack"
    assert amqp.publish(b"elsewhere", "b.a", unique, mandatory=True) == (
        "ack" if kind == "fanout" else "returned"
    )
    amqp.unbind(unique, unique, key)
    assert amqp.publish(b"unbound", "a.b", unique, mandatory=True) == "returned"
    amqp.delete_exchange(unique)
    with amqp.refused(404, f"no exchange '{unique}' in vhost '/'"):
        amqp.declare_exchange(unique, passive=True)
    amqp.delete_exchange(unique)


def test_headers_exchange_matches_all_or_any(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_exchange(unique, "headers")
    for match in ("all", "any"):
        amqp.declare_queue(f"{unique}-{match}")
        amqp.bind(f"{unique}-{match}", unique, "", {"x-match": match, "colour": "red", "size": 3})
    for body, headers in [
        (b"both", {"colour": "red", "size": 3}),
        (b"one", {"colour": "red", "size": 4}),
        (b"none", {}),
    ]:
        amqp.publish(body, "ignored", unique, properties={"headers": headers})
    assert (amqp.depth(f"{unique}-all"), amqp.depth(f"{unique}-any")) == (1, 2)


def test_exchanges_route_to_bound_exchanges(amqp: AmqpClient, unique: str) -> None:
    source, destination = f"{unique}-source", f"{unique}-destination"
    amqp.declare_exchange(source, "topic")
    amqp.declare_exchange(destination, "fanout")
    amqp.declare_queue(unique)
    amqp.bind(unique, destination, "")
    amqp.bind_exchange(destination, source, "news.#")
    assert amqp.publish(b"on", "news.today", source, mandatory=True) == "ack"
    assert amqp.publish(b"off", "olds", source, mandatory=True) == "returned"
    amqp.unbind_exchange(destination, source, "news.#")
    assert amqp.publish(b"off", "news.today", source, mandatory=True) == "returned"
    got = amqp.get(unique)
    assert got is not None
    assert (got.body, got.exchange, got.routing_key) == (b"on", source, "news.today")


def test_purge_and_delete_return_the_number_of_messages(amqp: AmqpClient, unique: str) -> None:
    assert amqp.declare_queue(unique, durable=True) == (unique, 0, 0)
    for _ in range(3):
        amqp.publish(b"", unique)
    assert amqp.purge(unique) == 3
    assert amqp.purge(unique) == 0
    amqp.publish(b"", unique)
    assert amqp.declare_queue(unique, durable=True) == (unique, 1, 0)
    assert amqp.delete_queue(unique) == 1
    assert amqp.delete_queue(unique) == 0


def test_missing_queue_is_not_found_and_the_client_stays_usable(
    amqp: AmqpClient, unique: str
) -> None:
    with amqp.refused(404, f"no queue '{unique}' in vhost '/'"):
        amqp.declare_queue(unique, passive=True)
    with amqp.refused(404, f"no queue '{unique}' in vhost '/'"):
        amqp.consume(unique)
    amqp.declare_queue(unique)
    assert amqp.depth(unique) == 0


def test_inequivalent_redeclaration_fails(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_queue(unique, durable=True)
    amqp.declare_exchange(unique, "direct")
    with amqp.refused(
        406,
        f"inequivalent arg 'durable' for queue '{unique}' in vhost '/':"
        " received 'false' but current is 'true'",
    ):
        amqp.declare_queue(unique)
    with amqp.refused(
        406,
        f"inequivalent arg 'type' for exchange '{unique}' in vhost '/':"
        " received 'topic' but current is 'direct'",
    ):
        amqp.declare_exchange(unique, "topic")


def test_exclusive_queue_is_locked_for_others_and_deleted_with_its_connection(
    amqp: AmqpClient, amqp_name: str, amqp_peer: AmqpPeers, unique: str
) -> None:
    owner = amqp_peer(amqp_name)
    owner.declare_queue(unique, exclusive=True)
    for touch in (
        lambda: amqp.declare_queue(unique),
        lambda: amqp.get(unique),
        lambda: amqp.delete_queue(unique),
    ):
        with amqp.refused(
            405, f"cannot obtain exclusive access to locked queue '{unique}' in vhost '/'"
        ):
            touch()
    owner.close()
    with amqp.refused(404, f"no queue '{unique}' in vhost '/'"):
        amqp.declare_queue(unique, passive=True)


@pytest.mark.parametrize("service", clients.AMQP)
def test_request_and_reply_over_the_default_exchange(
    amqp: AmqpClient, service: str, amqp_peer: AmqpPeers, unique: str
) -> None:
    server = amqp_peer(service)
    server.declare_queue(unique)
    server.consume(unique)
    replies = amqp.declare_queue(exclusive=True).queue
    assert replies.startswith("amq.gen-")
    amqp.consume(replies)
    amqp.publish(b"question", unique, properties={"reply_to": replies, "correlation_id": "42nd"})
    request = server.receive()
    assert request.body == b"question"
    properties = {"correlation_id": request.properties["correlation_id"]}
    assert (
        server.publish(
            b"answer", request.properties["reply_to"], mandatory=True, properties=properties
        )
        == "ack"
    )
    reply = amqp.receive()
    assert (reply.body, reply.properties["correlation_id"]) == (b"answer", "42nd")


@pytest.mark.parametrize("size", [0, 1, 64 << 10, 1 << 20])
def test_bodies_of_any_size_arrive_whole(amqp: AmqpClient, size: int, unique: str) -> None:
    body = bytes(number * 7 % 251 for number in range(251)) * (size // 251 + 1)
    amqp.declare_queue(unique)
    amqp.publish(body[:size], unique)
    amqp.publish(body[:size][::-1], unique)
    got = amqp.get(unique)
    assert got is not None
    assert got.body == body[:size]
    amqp.consume(unique)
    assert amqp.receive().body == body[:size][::-1]


def test_properties_arrive_as_they_were_sent(amqp: AmqpClient, unique: str) -> None:
    # Only the publishing library reads this header back: amqplib cannot read the 64-bit integers
    # that py-amqp writes.
    sent = PROPERTIES | {"headers": HEADERS | {"long long": 2**40}}
    amqp.declare_queue(unique)
    amqp.publish(b"", unique, properties=sent)
    amqp.consume(unique)
    got = amqp.receive().properties
    assert {name: got.get(name) for name in sent} == sent


def test_properties_are_the_same_for_every_library(
    amqp: AmqpClient, every_amqp: dict[str, AmqpClient], unique: str
) -> None:
    amqp.declare_queue(unique)
    for name, reader in every_amqp.items():
        amqp.publish(name.encode(), unique, properties=PROPERTIES)
        got = reader.get(unique)
        assert got is not None
        assert {name: got.properties.get(name) for name in PROPERTIES} == PROPERTIES, name
        reader.ack(got)


@pytest.mark.parametrize(
    "word",
    ["grüße \N{SNOWMAN}", "with space", "quo'te\"s/%?&", "a" * 160],
    ids=["unicode", "space", "signs", "long"],
)
def test_names_may_contain_any_character(amqp: AmqpClient, word: str, unique: str) -> None:
    key = f"{word}.{unique}"
    name = key if amqp.any_name else unique
    amqp.declare_exchange(name, "topic")
    amqp.declare_queue(name)
    amqp.bind(name, name, f"*.{unique}")
    assert amqp.publish(b"found", key, name, mandatory=True) == "ack"
    got = amqp.get(name)
    assert got is not None
    assert (got.body, got.exchange, got.routing_key) == (b"found", name, key)
    assert amqp.delete_queue(name) == 0
    amqp.delete_exchange(name)


def test_consumer_is_cancelled_when_its_queue_is_deleted(
    amqp: AmqpClient, amqp_name: str, amqp_peer: AmqpPeers, unique: str
) -> None:
    amqp.declare_queue(unique)
    tag = amqp.consume(unique)
    amqp_peer(amqp_name).delete_queue(unique)
    assert amqp.cancelled() == tag
    amqp.declare_queue(unique)
    assert amqp.depth(unique) == 0


def test_cancelled_consumer_receives_nothing(amqp: AmqpClient, unique: str) -> None:
    amqp.declare_queue(unique)
    tag = amqp.consume(unique)
    amqp.publish(b"before", unique)
    amqp.ack(amqp.receive())
    amqp.cancel(tag)
    amqp.publish(b"after", unique)
    assert amqp.declare_queue(unique) == (unique, 1, 0)


def test_libraries_report_a_refused_login(
    amqp_name: str, amqp_peer: AmqpPeers, broker: BrokerProcess
) -> None:
    for user, password in (("guest", "wrong"), ("absent", "guest")):
        with pytest.raises(
            LoginRefused, match="ACCESS_REFUSED - Login was refused using authentication mechanism"
        ):
            amqp_peer(amqp_name, url=broker.amqp_url_of(user, password))


@pytest.mark.long
def test_heartbeats_keep_an_idle_connection(
    amqp_name: str, amqp_peer: AmqpPeers, unique: str
) -> None:
    client = amqp_peer(amqp_name, heartbeat=1)
    client.declare_queue(unique, exclusive=True)
    client.idle(3.5)
    assert client.depth(unique) == 0
