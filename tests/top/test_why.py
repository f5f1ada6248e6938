"""Tests of `GET /api/why/...`: what is wrong with a queue or a client."""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Any

import pamqp.commands as spec
import pytest

from protocols.mqtt.session.session_row import session_row
from protocols.refusal_fields import ACCESS, CAUSE, LIMIT, MISSING_EXCHANGE, MISSING_QUEUE
from tests.clients import connect_packet, marshal, mqtt_publish, publication
from tests.top.api_client import ADMIN, api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Mqtt0, Running
from tests.top.why_answers import consume, of_queue, parsed, publish, why
from tests.wire.mqtt.client import subscribe
from trellis.diagnosis.clients import REFUSALS_MAX, refusal_findings
from trellis.server.refusals import LINES_MAX, LoggedRefusal, RefusalLog


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def test_a_queue_without_a_problem_has_no_finding(broker: Running) -> None:
    await (await broker.amqp()).queue("q")
    answer, findings = await why(broker, "queues/%2F/q?seconds=0")
    assert findings == {}
    assert answer["queue"] == {
        "name": "q",
        "vhost": "/",
        "type": "classic",
        "consumers": 0,
        "messages_ready": 0,
        "messages_unacknowledged": 0,
        "head_age_ms": None,
    }


async def test_messages_wait_without_a_consumer_and_recover_with_one(broker: Running) -> None:
    client = await broker.amqp()
    await client.queue("q")
    await publish(broker, "q", 2)
    assert await of_queue(broker, "q") == {
        "no_consumer": "no consumer is connected, and 2 messages wait"
    }
    await client.call(spec.Basic.Consume(queue="q", no_ack=True), spec.Basic.ConsumeOk)
    assert await of_queue(broker, "q") == {}


async def test_a_full_prefetch_names_the_consumer(broker: Running) -> None:
    client = await broker.amqp()
    await client.queue("q")
    await consume(client, "q", 2)
    await publish(broker, "q", 5)
    assert await of_queue(broker, "q") == {
        "prefetch_full": "consumers that hold as many messages as their prefetch allows, and "
        "acknowledge none: 1 of 1; consumer 'c' holds 2 messages; unacknowledged messages: 2"
    }
    _, findings = await why(broker, "clients/known")
    assert findings == {
        "prefetch_full": "channel 1 holds 2 unacknowledged messages; consumer 'c' of queue 'q' has "
        "as many as its prefetch allows, and more wait"
    }


async def test_a_poison_message_is_named_until_it_is_gone(broker: Running) -> None:
    client = await broker.amqp()
    await client.queue("q")
    await publish(broker, "q")
    for delivery_tag in range(1, 4):
        await client.call(spec.Basic.Get(queue="q"), spec.Basic.GetOk)
        await client.frame()
        await client.frame()
        nack = marshal(1, spec.Basic.Nack(delivery_tag=delivery_tag, requeue=True))
        await client.socket.send(nack)
    queue = broker.node.broker.vhosts["/"].queues["q"]
    await broker.until(lambda: queue.depth == 1)
    assert (await of_queue(broker, "q"))["poison"].startswith(
        "the first message was returned 3 times"
    )
    await client.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    assert await of_queue(broker, "q") == {}


async def test_limits_and_dead_letters(broker: Running) -> None:
    client = await broker.amqp()
    arguments = {"x-max-length": 2, "x-dead-letter-exchange": "absent"}
    await client.queue("q", arguments=arguments)
    await client.queue("short", arguments={"x-max-length": 1})
    await publish(broker, "q", 3)
    await publish(broker, "short", 3)
    findings = await of_queue(broker, "q")
    assert findings["full"] == "the queue is full (limit: 2 messages) and drops its oldest messages"
    assert findings["dead_letter_exchange"] == (
        "dead letters are lost: their exchange 'absent' does not exist"
    )
    assert (await of_queue(broker, "short"))["over_limit"] == (
        "messages lost since the start because the queue was full: 2"
    )
    policy = {
        "pattern": "^r",
        "definition": {"max-length": 1, "dead-letter-exchange": "amq.fanout"},
    }
    assert (await api(broker, "PUT", "policies/%2F/small", policy))[0] == 201
    await client.queue("r")
    await publish(broker, "r", 2)
    findings = await of_queue(broker, "r")
    assert findings["full"].startswith("the queue is full (limit of policy 'small': 1 message)")
    assert findings["dead_lettered"] == (
        "messages that went to the dead letter exchange 'amq.fanout': 1"
    )
    policy = {"pattern": "^s$", "definition": {"max-length": 1}}
    assert (await api(broker, "PUT", "policies/%2F/single", policy))[0] == 201
    await client.queue("s")
    await publish(broker, "s", 2)
    assert (await of_queue(broker, "s"))["over_limit"] == (
        "messages lost since the start because the queue was full: 1 (limit of policy 'single')"
    )


async def test_a_growing_queue(broker: Running) -> None:
    await (await broker.amqp()).queue("q")
    asking = asyncio.create_task(why(broker, "queues/%2F/q?seconds=0.5"))
    queue = broker.node.broker.vhosts["/"].queues["q"]
    while not asking.done():
        await publish(broker, "q")
    _, findings = await asking
    assert findings["growing"].startswith("the queue grows by ") and queue.depth > 0
    _, findings = await why(broker, "queues/%2F/q?seconds=0.01")
    assert re.fullmatch(r"no message arrived or was settled within \d+\.\d s", findings["still"])


async def test_refused_logins_and_take_overs_of_a_client(broker: Running) -> None:
    for _ in range(3):
        client = await broker.socket("mqtt")
        await client.send(connect_packet("pump-7", user="known/wrong"))
        await client.read()
    _, findings = await why(broker, "clients/known")
    assert "a login was refused for user 'known' from 127.0.0.1" in findings["login_refused"]
    assert "and 2 times again" in findings["login_refused"]
    first = await broker.mqtt("pump-7", user="known/known", clean=False)
    await broker.mqtt("pump-7", user="known/known", clean=False)
    _, findings = await why(broker, "clients/pump-7")
    assert "two devices use one client identifier" in findings["session_taken_over"]
    del first


async def test_a_session_whose_client_is_away(broker: Running) -> None:
    device = await broker.mqtt("device", user="known/known", clean=False)
    _, findings = await why(broker, "clients/device")
    assert findings == {
        "no_subscription": "the session has no subscription, so it receives no message"
    }
    await device.subscribe("a/#", 1)
    await device.leave()
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("a/b", b"x", 1, 1) + mqtt_publish("a/b", b"x"))
    (inbox,) = (
        session.inbox for session in broker.node.mqtt.sessions.all() if session.name == "device"
    )
    await broker.until(lambda: inbox.depth == 1)
    answer, findings = await why(broker, "clients/device")
    assert findings["away"] == (
        "the client is not connected; its session keeps 1 subscription and 1 message for it; if "
        "the client will not return, `trellis sessions delete device` ends the session"
    )
    assert [one["next"] for one in answer["findings"] if one["problem"] == "away"] == [
        "trellis list sessions --filter client_id=device --watch"
    ]
    parsed("trellis sessions delete device")
    assert findings["missed"].endswith("(to keep messages, publish with QoS 1): 1")
    assert (await of_queue(broker, inbox.name))["no_consumer"] == (
        "no client of the session is connected, and 1 message waits"
    )


async def test_a_shared_subscription_is_a_subscription_of_its_session(broker: Running) -> None:
    worker = await broker.mqtt("worker", user="known/known", clean=False)
    await worker.subscribe("$share/workers/jobs/#", 1)
    _, findings = await why(broker, "clients/worker")
    assert findings == {}
    await worker.leave()
    _, findings = await why(broker, "clients/worker")
    assert "its session keeps 1 subscription and 0 messages for it" in findings["away"]
    (row,) = (session_row(one) for one in broker.node.mqtt.sessions.all())
    assert row["subscriptions"] == 1


async def test_a_closed_channel_names_the_command_that_fits_its_reason(broker: Running) -> None:
    async def closed(method: Any) -> str:
        """Return the next command after the broker has closed a channel because of `method`."""
        client = await broker.amqp()
        await client.call(method, spec.Channel.Close)
        (finding, *_) = (await why(broker, "clients/known"))[0]["findings"]
        assert finding["problem"] == "channel_closed"
        await client.leave()
        return str(finding["next"])

    await (await broker.amqp()).queue("q")
    missing = spec.Queue.Declare(queue="ordrs", passive=True)
    assert await closed(missing) == "trellis list queues"
    assert await closed(spec.Basic.Consume(queue="gone")) == "trellis list queues"
    bound = spec.Queue.Bind(queue="q", exchange="sensor", routing_key="a")
    assert await closed(bound) == "trellis list exchanges"
    other = spec.Queue.Declare(queue="q", durable=True)
    assert await closed(other) == "trellis list log --filter event=channel_closed"
    refused = spec.Exchange.Declare(exchange="amq.mine")
    assert await closed(refused) == "trellis permissions list known"


async def test_the_cause_of_a_refused_mqtt_client_leads_to_the_next_command(start: Start) -> None:
    rules = ["allow publish mine/#", "allow subscribe mine/#"]
    running = await start(
        users=[KNOWN | {"rules": rules}, KNOWN | {"name": "out", "vhosts": ()}, ADMIN],
        mqtt={"subscriptions": 1},
    )

    async def finding(name: str) -> dict[str, str]:
        """Return the only finding about a refusal of a client."""
        answer, _ = await why(running, f"clients/{name}")
        (refusal,) = [one for one in answer["findings"] if "_refused" in one["problem"]]
        assert "cause" not in refusal["text"]  # The finding's note explains the cause in words.
        return dict(refusal)

    async def refused_filter(client: Mqtt0, topic_filter: str) -> None:
        """Subscribe to a topic filter that the broker refuses."""
        await client.socket.send(subscribe(1, (topic_filter, 0)))
        assert await client.socket.exactly(5) == b"\x90\x03\x00\x01\x80"

    limited = await running.mqtt("limited", user="known/known")
    await limited.subscribe("mine/a")
    await refused_filter(limited, "mine/b")
    refusal = await finding("limited")
    assert "a limit on subscriptions is reached" in refusal["text"]
    assert refusal["next"] == "trellis list settings --filter 'name=mqtt.*subscriptions'"
    reader = await running.mqtt("reader", user="known/known")
    await refused_filter(reader, "others/#")
    refusal = await finding("reader")
    assert "the user may not read topics of this filter" in refusal["text"]
    assert refusal["next"] == "trellis permissions list known"
    publisher = await running.mqtt("publisher", user="known/known")
    await publisher.socket.send(mqtt_publish("others/t", b"x", 1, 1))
    await publisher.socket.exactly(4)
    refusal = await finding("publisher")
    assert refusal["problem"] == "publication_refused"
    assert refusal["next"] == "trellis permissions list known"
    outside = await running.socket("mqtt")
    await outside.send(connect_packet("outside", user="out/known"))
    await outside.read()
    refusal = await finding("outside")
    assert "user 'out' has no permissions in the vhost '/'" in refusal["text"]
    assert refusal["next"] == "trellis permissions list out"
    wrong = await running.socket("mqtt")
    await wrong.send(connect_packet("wrong", user="known/wrong"))
    await wrong.read()
    assert (await finding("wrong"))["next"] == "trellis users list"


def test_the_next_command_does_not_depend_on_the_words_of_a_note() -> None:
    note = "NOT_FOUND - no queue 'q'; ACCESS_REFUSED; the user may not read"
    for event, fields, after in (
        ("channel_closed", {}, "list log --filter event=channel_closed"),
        ("channel_closed", {CAUSE: MISSING_EXCHANGE, "vhost": "v"}, "list exchanges --vhost v"),
        ("channel_closed", {CAUSE: MISSING_QUEUE}, "list queues"),
        ("channel_closed", {CAUSE: ACCESS}, "permissions list ann"),
        ("subscription_refused", {CAUSE: LIMIT}, "list settings --filter name=mqtt.*subscriptions"),
        ("subscription_refused", {CAUSE: ACCESS}, "permissions list ann"),
    ):
        refusal = LoggedRefusal(event, {"user": "ann", "note": note, **fields})
        (finding,) = refusal_findings([refusal], "ann")
        assert shlex.split(finding.next) == ["trellis", *after.split()]
        assert finding.text.endswith(f": {note}")
        parsed(finding.next)


async def test_the_operators_own_refused_requests_are_no_problem_of_a_client(
    broker: Running,
) -> None:
    await (await broker.amqp()).queue("q")
    assert (await api(broker, "DELETE", "queues/%2F/absent"))[0] == 404
    assert (await api(broker, "GET", "users", user="known"))[0] == 403
    for name in ("known", "127.0.0.1"):
        answer, findings = await why(broker, f"clients/{name}")
        assert [one["problem"] for one in answer["findings"]] == ["http_refused"], name
        assert "for user 'known' from 127.0.0.1" in findings["http_refused"]
    # Only the operator's requests have the name of the operator.
    assert (await api(broker, "GET", "why/clients/admin"))[0] == 404


async def test_unknown_objects_and_wrong_questions(broker: Running) -> None:
    assert (await api(broker, "GET", "why/queues/%2F/absent"))[1]["reason"] == (
        "no queue 'absent' in vhost '/'"
    )
    status, answer = await api(broker, "GET", "why/clients/absent")
    assert status == 404 and "no client is known as 'absent'" in answer["reason"]
    await (await broker.amqp()).queue("q")
    for seconds in ("-1", "11", "x", "nan"):
        assert (await api(broker, "GET", f"why/queues/%2F/q?seconds={seconds}"))[0] == 400
    assert (await api(broker, "GET", "why/clients/x", user="known"))[0] == 403


async def test_the_last_refusals_are_kept_and_bounded() -> None:
    log = RefusalLog(asyncio.get_running_loop(), lambda *_, **__: None)
    for number in range(LINES_MAX + 5):
        log.add("login_refused", {"user": "ann", "note": str(number)})
        if number % 100 == 99:
            log.report()
    assert len(log.recent) == LINES_MAX
    findings = refusal_findings(log.recent, "ann")
    assert len(findings) == REFUSALS_MAX
    assert findings[0].text.endswith(f": {LINES_MAX + 4}")
    log.report()


async def test_a_client_that_reads_too_slowly_is_named_until_it_reads(broker: Running) -> None:
    client = await broker.amqp()
    await client.queue("q")
    await client.socket.send(publication("", "q", bytes(100_000)) * 300)
    await client.socket.send(marshal(1, spec.Basic.Consume(queue="q", no_ack=True)))
    (connection,) = broker.node.amqp.connections
    await broker.until(lambda: connection.paused)
    _, findings = await why(broker, "clients/known")
    assert "reads too slowly, so queues deliver to other consumers; " in findings["slow"]
    assert findings["slow"].endswith(" bytes wait to be sent to it")
    assert "slow_consumers" in await of_queue(broker, "q")
    while "slow" in (await why(broker, "clients/known"))[1]:
        await client.frame()


async def test_a_throttled_client_is_named_with_the_limit(start: Start) -> None:
    running = await start(**users(), rates={"connection_messages": 100, "patience": 3_600})
    fast, reader = [await running.mqtt(name, user="known/known") for name in ("fast", "reader")]
    await reader.subscribe("t")
    burst = mqtt_publish("t", b"x") * 3_000  # The client is throttled for half a minute.
    await fast.socket.send(burst)
    await reader.socket.exactly(len(burst))
    answer, findings = await why(running, "clients/fast")
    assert findings["slow"].endswith(
        " is faster than rates.connection_messages allows, so the broker throttles it"
    )
    assert answer["next"] == "trellis list settings --filter 'name=rates.*'"


async def test_a_publisher_that_an_alarm_blocks_is_named_until_the_alarm_ends(
    broker: Running,
) -> None:
    alarms = broker.node.broker.alarms
    alarms.set("flood", True)
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("t", b"x"))
    await broker.until(lambda: len(alarms.waiting) == 1)
    answer, findings = await why(broker, "clients/sender")
    assert findings["blocked"].endswith("until all alarms have ended; alarms now: flood")
    assert answer["next"] == "trellis health"
    alarms.set("flood", False)
    await sender.ping()
    assert "blocked" not in (await why(broker, "clients/sender"))[1]
