"""Tests of connection limits and rate limits: clients are throttled, then refused with a reason."""

from __future__ import annotations

import pamqp.commands as spec
import pytest

import trellis
from broker.limits import BrokerLimits
from protocols.mqtt.options import MqttOptions
from protocols.peer import Peer
from tests.clients import World, marshal, mqtt_publish, publication
from tests.top.conftest import Start
from tests.wire.mqtt.client import connect, suback, subscribe, unsuback, unsubscribe
from trellis.auth.rates import MAX_SHARED_BUCKETS, PublishRates, TokenBucket
from trellis.diagnosis.clients import refusal_findings
from trellis.server.admission import Admission
from trellis.settings.limits import RatesSettings as RateSettings


def test_a_bucket_holds_one_second_and_its_debt_is_paid_in_time() -> None:
    bucket = TokenBucket(100, 0)
    assert bucket.charge(100, 0) == 0
    assert bucket.charge(50, 0) == 0.5
    assert bucket.charge(0, 500) == 0
    assert bucket.charge(100, 10_000) == 0
    assert bucket.charge(1, 10_000) == 0.01


def test_each_rate_limit_is_charged_to_its_client_or_user_and_the_longest_wait_counts() -> None:
    rates = PublishRates(
        RateSettings(connection_messages=100, user_messages=10, vhost_bytes=1_000, patience=60)
    )
    one, other = rates.connection_buckets(0), rates.connection_buckets(0)
    assert rates.charge(one, "u", "/", "a", 10, 10, 0) == (0.0, "")
    assert rates.charge(other, "u", "/", "a", 10, 10, 0) == (1.0, "user_messages")
    assert rates.charge(other, "v", "/", "a", 10, 10_000, 0) == (9.02, "vhost_bytes")
    assert rates.charge(other, "", "", "a", 81, 0, 0) == (0.01, "connection_messages")
    assert rates.throttled == {"connection_messages": 1, "user_messages": 1, "vhost_bytes": 1}


def test_buckets_of_many_users_fill_no_memory() -> None:
    rates = PublishRates(RateSettings(user_messages=10))
    for number in range(MAX_SHARED_BUCKETS + 100):
        rates.charge({}, f"u{number}", "/", "a", 1, 1, 0)
    assert len(rates._shared) == MAX_SHARED_BUCKETS


def test_an_address_may_have_so_many_connections() -> None:
    world, admission = (
        World(),
        Admission(connections=100, unauthenticated_per_address=100, per_address=2),
    )
    afar = Peer("192.0.2.1", 1, False)
    here = []
    for _ in range(2):
        assert admission.refusal_reason("192.0.2.1", False, 0) == ""
        here.append(world.mqtt_front.connect(afar))
        admission.add(here[-1])
    assert admission.refusal_reason("192.0.2.1", False, 2) == "address_connections"
    assert (
        admission.refusal_reason("192.0.2.2", False, 2)
        == ""
        == admission.refusal_reason("127.0.0.1", True, 2)
    )
    admission.remove(here[0])
    assert admission.refusal_reason("192.0.2.1", False, 1) == ""
    assert admission.refused["address_connections"] == 1


def test_a_client_may_have_so_many_subscriptions() -> None:
    options = MqttOptions()
    options.subscriptions = 2
    world = World(BrokerLimits(), mqtt=options)
    client = world.mqtt("c")
    assert client.send(subscribe(1, ("a", 0), ("$share/g/b", 0), ("c", 0), ("a", 1))) == suback(
        1, 0, 0, 0x80, 1
    )


def test_a_client_may_have_so_many_shared_subscriptions() -> None:
    options = MqttOptions()
    options.shared_subscriptions = 2
    world = World(BrokerLimits(), mqtt=options)
    client = world.mqtt("c")
    wanted = ("a", 0), ("$share/g/a", 0), ("$share/g/b", 0), ("$share/g/c", 0), ("$share/g/a", 1)
    assert client.send(subscribe(1, *wanted)) == suback(1, 0, 0, 0, 0x80, 1)
    assert world.mqtt_front.sessions.refused_subscriptions == 1
    # A removed shared subscription does not count any more, so the next one is accepted.
    assert client.send(unsubscribe(2, "$share/g/b")) == unsuback(2)
    assert client.send(subscribe(3, ("$share/g/c", 0))) == suback(3, 0)


async def test_without_rates_links_are_not_metered(start: Start) -> None:
    running = await start()
    await running.mqtt("c")
    (link,) = running.node.turn.links
    assert type(link).__name__ == "Link"


async def test_only_a_client_above_the_rate_limit_is_throttled_and_listed(start: Start) -> None:
    running = await start(rates={"connection_messages": 1_000, "patience": 60})
    fast, other, reader = [await running.mqtt(name) for name in ("fast", "other", "reader")]
    await reader.subscribe("t")
    burst = mqtt_publish("t", b"x") * 1_300
    await fast.socket.send(burst)
    await reader.socket.exactly(len(burst))
    rows = [row for link in running.node.mqtt.connections if (row := link.describe())["slow"]]
    assert [(row["client"], row["slow"]) for row in rows] == [
        ("fast", "is faster than rates.connection_messages allows")
    ]
    await fast.socket.send(mqtt_publish("t", b"y"))
    await other.ping()
    await reader.socket.exactly(len(mqtt_publish("t", b"y")))
    page = await running.scrape()
    assert page.value("trellis_rate_waits_total", limit="connection_messages") >= 1
    assert page.value("trellis_rate_refused_total", limit="connection_messages") == 0


@pytest.mark.parametrize(
    "limit", ["connection_messages", "user_bytes", "vhost_messages", "address_bytes"]
)
async def test_client_that_would_wait_too_long_is_disconnected_with_a_reason(
    start: Start, limit: str
) -> None:
    running = await start(rates={limit: 10, "patience": 3_600 if limit.endswith("bytes") else 1})
    await running.reload(running.chosen)
    client = await running.amqp() if not limit.endswith("bytes") else None
    if client is None:
        mqtt = await running.mqtt("c")
        running.node.rates.patience = 1
        await mqtt.socket.send(mqtt_publish("t", b"x" * 1_000))
        assert await mqtt.socket.read() == b""
    else:
        await client.socket.send(publication("amq.topic", "t", b"x") * 100)
        close = await client.expect(spec.Connection.Close)
        assert close.reply_code == 506
        assert close.reply_text == (
            f"RESOURCE_ERROR - the client sends more than rates.{limit} allows (10 messages a "
            "second), and would have to wait longer than rates.patience (1 s)"
        )
        # A client may send more before it answers the close. It is refused once.
        await client.socket.send(publication("amq.topic", "t", b"x") * 100)
        await client.socket.send(marshal(0, spec.Connection.CloseOk()))
        assert await client.socket.read() == b""
    page = await running.scrape()
    assert page.value("trellis_rate_refused_total", limit=limit) == 1


async def test_refusal_of_a_client_above_its_rate_limit_is_logged(
    start: Start,
) -> None:
    running = await start(rates={"user_messages": 10, "patience": 1})
    client = await running.mqtt("fast")
    await client.socket.send(mqtt_publish("t", b"x") * 100)
    assert await client.socket.read() == b""
    (refusal,) = running.node.refusals.recent
    assert (refusal.event, refusal.fields["client"]) == ("connection_closed", "fast")
    assert "rates.user_messages allows" in refusal.fields["note"]
    (problem,) = refusal_findings(running.node.refusals.recent, "fast")
    assert "rates.patience" in problem.text


@pytest.mark.parametrize("protocol", ["mqtt", "amqp"])
async def test_a_new_connection_is_not_charged_for_earlier_messages_of_its_user(
    start: Start, protocol: str
) -> None:
    """Check that no client waits for `user_messages` while its user stays below this rate.

    The connections of one user share the publish context, which counts all messages of the user. A
    new connection must not count the earlier messages again.
    """
    running = await start(rates={"user_messages": 1_000, "patience": 60})
    for number in range(3):
        if protocol == "mqtt":
            client = await running.mqtt(f"client-{number}")
            await client.socket.send(mqtt_publish("t", b"x") * 300)
            await client.ping()
        else:
            channel = await running.amqp()
            await channel.socket.send(publication("amq.topic", "t", b"x") * 300)
            await channel.socket.send(marshal(1, spec.Queue.Declare(exclusive=True)))
            await channel.expect(spec.Queue.DeclareOk)
    page = await running.scrape()
    assert page.value("trellis_rate_waits_total", limit="user_messages") == 0


@pytest.mark.skipif(trellis.compiled(), reason="compiled modules keep constants")
async def test_messages_that_waited_for_their_turn_are_charged_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(rates={"connection_messages": 1_000, "patience": 60})
    client = await running.mqtt("c")
    # Every chunk waits for the next turn, as on a busy broker.
    monkeypatch.setattr("trellis.server.turn.INPUT_SECONDS", -1.0)
    await client.socket.send(mqtt_publish("t", b"x") * 700)
    await client.ping()
    page = await running.scrape()
    assert page.value("trellis_rate_waits_total", limit="connection_messages") == 0


async def test_messages_in_the_same_chunk_as_login_and_logout_are_charged(start: Start) -> None:
    running = await start(rates={"user_messages": 100, "patience": 60})
    whole = connect("hasty") + mqtt_publish("t", b"x") * 300 + b"\xe0\x00"
    hasty = await running.socket("mqtt")
    await hasty.send(whole)
    assert (await hasty.read()).startswith(b"\x20\x02\x00\x00")
    other = await running.mqtt("other")
    await other.socket.send(mqtt_publish("t", b"x"))
    page = await running.scrape()
    # The client that has left counts in the rates of its user, but it was not throttled.
    assert page.value("trellis_rate_waits_total", limit="user_messages") == 1
    assert page.value("trellis_rate_refused_total", limit="user_messages") == 0


def test_after_a_disconnection_other_clients_wait_for_half_of_the_patience() -> None:
    rates = PublishRates(RateSettings(user_messages=10, patience=5))
    assert rates.charge({}, "u", "/", "a", 10_000, 10, 0) == (999.0, "user_messages")
    assert rates.disconnected == {"user_messages": 1}
    # Another client of the user waits for half of the patience (2.5 s), plus 0.1 s for its own
    # message.
    assert rates.charge({}, "u", "/", "a", 1, 10, 0) == (2.6, "user_messages")
    assert rates.throttled == {"user_messages": 1}
    assert rates.charge({}, "u", "/", "a", 0, 10, 2_600) == (0.0, "")
