"""`GET /api/why/...` and `trellis why`: what is wrong with a queue, a client or a topic."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import connect_packet, marshal, mqtt_publish
from tests.top.conftest import Start
from tests.top.running import Amqp0, Running
from tests.top.test_api import api, users
from trellis.cli import main, parser
from trellis.diagnosis.clients import REFUSALS_MAX, refusal_findings
from trellis.server.refusals import LINES_MAX, RefusalLog


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def why(broker: Running, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask `GET /api/why/PATH`; return its answer, and the `text` of each finding by `problem`.

    Check that the command `next` of each finding can be parsed.
    """
    status, answer = await api(broker, "GET", f"why/{path}")
    assert status == 200, answer
    for finding in answer["findings"]:
        if finding["next"]:
            words = shlex.split(finding["next"])
            assert words[0] == "trellis" and parser().parse(words[1:]).command == words[1]
    return answer, {finding["problem"]: finding["text"] for finding in answer["findings"]}


async def of_queue(broker: Running, name: str, seconds: float = 0) -> dict[str, str]:
    return (await why(broker, f"queues/%2F/{name}?seconds={seconds}"))[1]


async def publish(broker: Running, key: str, count: int = 1) -> None:
    message = {"properties": {}, "routing_key": key, "payload": "x", "payload_encoding": "string"}
    for _ in range(count):
        assert (await api(broker, "POST", "exchanges/%2F/amq.default/publish", message))[0] == 200


async def consume(client: Amqp0, queue: str, prefetch: int) -> None:
    await client.call(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
    await client.call(spec.Basic.Consume(queue=queue, consumer_tag="c"), spec.Basic.ConsumeOk)


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
    assert findings["full"] == "the queue is full (2 messages) and drops its oldest messages"
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
    assert findings["full"].startswith("the queue is full (1 message, policy 'small')")
    assert findings["dead_lettered"] == (
        "messages that went to the dead letter exchange 'amq.fanout': 1"
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
    assert findings["still"] == "no message arrived or was settled between the two counts"


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
        "no_subscription": "the session has no subscription, so no message comes for it"
    }
    await device.subscribe("a/#", 1)
    await device.leave()
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("a/b", b"x", 1, 1) + mqtt_publish("a/b", b"x"))
    (inbox,) = (
        session.inbox for session in broker.node.mqtt.sessions.all() if session.name == "device"
    )
    await broker.until(lambda: inbox.depth == 1)
    _, findings = await why(broker, "clients/device")
    assert findings["away"] == (
        "the client is not connected; its session keeps 1 subscription and 1 message for it"
    )
    assert findings["missed"].endswith("no session keeps (publish with QoS 1): 1")
    assert (await of_queue(broker, inbox.name))["no_consumer"] == (
        "no client of the session is connected, and 1 message waits"
    )


async def test_unknown_objects_and_wrong_questions(broker: Running) -> None:
    assert (await api(broker, "GET", "why/queues/%2F/absent"))[1]["reason"] == (
        "there is no queue 'absent' in vhost '/'"
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


@pytest.fixture
def command(broker: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs `trellis` beside the broker, and returns code and output."""
    monkeypatch.setenv("TRELLIS_HTTP_PORT", str(broker.port("http")))
    login = ("--user", "admin", "--password", "known")

    async def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*words, *login])
        return code, capsys.readouterr().out

    return run


async def test_the_command_prints_problems_and_the_next_command(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await broker.amqp()
    await client.queue("q")
    capsys.readouterr()
    code, output = await command(capsys, "why", "queue", "q", "--seconds", "0")
    assert code == 0 and output.splitlines() == [
        "classic queue 'q' in vhost '/': 0 ready, 0 unacknowledged, consumers: 0",
        "no problem found",
    ]
    await publish(broker, "q")
    code, output = await command(capsys, "why", "queue", "q", "--seconds", "0")
    assert code == 1 and output.splitlines()[1:] == [
        "- no consumer is connected, and 1 message waits",
        "  next: trellis list connections",
    ]
    code, output = await command(capsys, "why", "client", "known", "--json")
    assert code == 0 and json.loads(output)["client"]["connections"] == 1


async def test_a_topic_without_a_subscription_and_one_that_is_denied(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/+/temp")
    capsys.readouterr()
    code, output = await command(capsys, "why", "topic", "plant/7/temp")
    assert code == 0 and "queues and sessions reached: 1" in output
    code, output = await command(capsys, "why", "topic", "plant/7/Temp")
    assert code == 1
    assert "- no subscription and no binding matches topic 'plant/7/Temp'" in output
    assert "  next: trellis route --mqtt plant/7/Temp" in output
    assert "- 'plant/+/temp' of session 'device' almost matches: " in output
    assert (await api(broker, "PUT", "users/eve", {"password_hash": "", "tags": ""}))[0] == 201
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    assert (await api(broker, "PUT", "permissions/%2F/eve", everything))[0] == 201
    rules = {"rules": ["deny publish plant/#", "allow all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/eve", rules))[0] in (201, 204)
    code, output = await command(capsys, "why", "topic", "plant/7/temp", "--publisher", "eve")
    assert code == 1 and "- the broker refuses the message: " in output
    assert "  next: trellis permissions list eve" in output
