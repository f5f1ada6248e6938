"""The exchange type x-message-deduplication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.exchanges import DeduplicationExchange
from tests.clients import Amqp, World
from tests.store.homes import Home
from tests.wire.amqp.speech import names, read, refusal

Q, B, X = spec.Queue, spec.Basic, spec.Exchange
KEY = "x-deduplication-header"


def filtering(world: World, durable: bool = False, **arguments: Any) -> Amqp:
    client = world.amqp()
    given = {"x-cache-size": 100} | {
        name.replace("_", "-"): value for name, value in arguments.items()
    }
    client.send(
        X.Declare(
            exchange="x",
            exchange_type="x-message-deduplication",
            durable=durable,
            arguments=given,
        )
    )
    client.queue("q", "x", "", durable=durable)
    return client


def publish(client: Amqp, body: bytes, value: Any, **headers: Any) -> list[Any]:
    return client.publish("x", "k", body, headers={KEY: value, **headers})


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30),
)
def test_the_filter_equals_a_model(size: int, ttl: int, steps: list[tuple[int, int]]) -> None:
    arguments: dict[str, Any] = {"x_cache_ttl": ttl} if ttl else {}
    client = filtering(World(), x_cache_size=size, **arguments)
    now, wanted = 0, []
    known: dict[int, int] = {}
    for at, (value, pause) in enumerate(steps):
        publish(client, b"%d" % at, value)
        if value not in known or ttl and known[value] + ttl <= now:
            wanted.append(b"%d" % at)
            known.pop(value, None)
            known = {one: time for one, time in known.items() if not ttl or time + ttl > now}
            known[value] = now
            while len(known) > size:
                del known[next(iter(known))]
        client.world.sleep(pause)
        now += pause
    assert read(client, "q") == wanted
    exchange = client.world.vhost.exchanges["x"]
    assert isinstance(exchange, DeduplicationExchange) and exchange.filter.entries <= size
    client.world.fates()


def test_a_repeated_message_is_confirmed_and_counted_and_not_returned() -> None:
    client = filtering(World())
    client.send(spec.Confirm.Select())
    publish(client, b"1", "a")
    frames = client.publish("x", "k", b"2", mandatory=True, headers={KEY: "a"})
    assert names(frames) == ["Basic.Ack"]
    assert client.world.fates()["repeated"] == 1 and read(client, "q") == [b"1"]


def test_messages_without_the_header_are_never_repeated() -> None:
    client = filtering(World())
    for _ in range(2):
        client.publish("x", "k", b"x")
        client.publish("x", "k", b"y", headers={"other": 1})
    assert read(client, "q") == [b"x", b"y"] * 2


def test_values_of_different_types_differ() -> None:
    client = filtering(World())
    values: list[Any] = ["1", 1, True, 1.5, None, ["1"], {"a": 1}]
    for value in values * 2:
        publish(client, repr(value).encode(), value)
    assert read(client, "q") == [repr(value).encode() for value in values]


def test_the_header_with_a_ttl_overrides_the_exchange() -> None:
    client = filtering(World(), x_cache_ttl=1_000)
    publish(client, b"1", "a", **{"x-cache-ttl": 10})
    client.world.sleep(10)
    publish(client, b"2", "a")
    client.world.sleep(999)
    publish(client, b"3", "a")
    client.world.sleep(1)
    publish(client, b"4", "a")
    assert read(client, "q") == [b"1", b"2", b"4"]


def test_a_message_that_a_full_queue_refused_may_be_published_again() -> None:
    client = filtering(World())
    client.queue("full", "x", "", x_max_length=0, x_overflow="reject-publish")
    client.send(spec.Confirm.Select())
    assert names(publish(client, b"1", "a")) == ["Basic.Nack"]
    client.send(Q.Delete(queue="full"))
    assert names(publish(client, b"2", "a")) == ["Basic.Ack"]
    # The first publication reached `q` as well. The second one was no duplicate, so `q` has it too.
    assert read(client, "q")[-1:] == [b"2"]


def test_an_exchange_behind_another_exchange_filters_too() -> None:
    client = filtering(World())
    client.send(X.Bind(destination="x", source="amq.fanout", routing_key=""))
    for body in (b"1", b"2"):
        client.publish("amq.fanout", "k", body, headers={KEY: "a"})
    assert read(client, "q") == [b"1"]
    client.world.fates()


def behind(alternate: str = "") -> Amqp:
    """Return a client with a fanout exchange `f` that leads to the deduplication exchange `x`.

    `alternate` is the alternate exchange of `x`; "" for none.
    """
    client = World().amqp()
    client.queue("other", "amq.fanout", "")
    given: dict[str, Any] = {"x-cache-size": 100, "x-cache-ttl": 100}
    if alternate:
        given["alternate-exchange"] = alternate
    client.send(
        X.Declare(exchange="x", exchange_type="x-message-deduplication", arguments=given),
        X.Declare(exchange="f", exchange_type="fanout"),
        X.Bind(destination="x", source="f", routing_key=""),
        spec.Confirm.Select(),
    )
    client.queue("q", "x", "")
    return client


def test_a_repeated_message_is_not_returned_behind_another_exchange_either() -> None:
    client = behind()
    for _ in range(2):
        frames = client.publish("f", "k", b"1", mandatory=True, headers={KEY: "a"})
        assert names(frames) == ["Basic.Ack"]
    assert client.world.fates()["repeated"] == 1 and read(client, "q") == [b"1"]


@pytest.mark.parametrize("exchange", ["f", "x"])
def test_a_repeated_message_takes_no_alternate_exchange(exchange: str) -> None:
    client = behind("amq.fanout")
    for _ in range(2):
        client.publish(exchange, "k", b"1", headers={KEY: "a"})
    assert (read(client, "q"), read(client, "other")) == ([b"1"], [])
    client.world.fates()


def test_a_repeated_message_does_not_prolong_the_time_of_its_value() -> None:
    client = behind()
    client.queue("all", "f", "")
    for number in range(4):
        client.publish("f", "k", b"%d" % number, headers={KEY: "a"})
        client.world.sleep(40)
    assert read(client, "q") == [b"0", b"3"]
    assert len(read(client, "all")) == 4
    client.world.fates()


def test_a_transaction_publishes_a_value_once() -> None:
    client = filtering(World())
    client.send(spec.Tx.Select())
    publish(client, b"1", "a")
    publish(client, b"2", "a")
    client.send(spec.Tx.Rollback())
    publish(client, b"3", "a")
    publish(client, b"4", "a")
    client.send(spec.Tx.Commit())
    assert read(client, "q") == [b"3"]
    client.world.fates()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-cache-size": 0},
        {"x-cache-size": 1_000_001},
        {"x-cache-size": "many"},
        {"x-cache-size": 5, "x-cache-ttl": 0},
        {"x-cache-size": 5, "x-cache-persistence": "disk"},
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    client = World().amqp()
    error = refusal(
        client.send(
            X.Declare(exchange="x", exchange_type="x-message-deduplication", arguments=arguments)
        )
    )
    assert error.code == 406 and "x-cache-" in error.text


def test_the_filter_is_empty_after_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = filtering(home, durable=True, x_cache_size="7")
    publish(client, b"1", "a")
    home.store.sync()
    home.crash()
    client = Home(tmp_path / "d").amqp()
    publish(client, b"2", "a")
    publish(client, b"3", "a")
    assert read(client, "q") == [b"2"]
