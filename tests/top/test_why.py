"""`GET /api/why/...` and `trellis why`: what is wrong with a queue, a client or a topic."""

from __future__ import annotations

import ast
import asyncio
import json
import shlex
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pamqp.commands as spec
import pytest

from protocols.refusal_fields import ACCESS, CAUSE, LIMIT, MISSING_EXCHANGE, MISSING_QUEUE
from tests.clients import connect_packet, marshal, mqtt_publish, publication
from tests.top.api_client import ADMIN, api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Amqp0, Mqtt0, Running
from tests.wire.mqtt.client import subscribe
from trellis import diagnosis
from trellis.cli import main, parser
from trellis.diagnosis.clients import REFUSALS_MAX, refusal_findings
from trellis.server.refusals import LINES_MAX, LoggedRefusal, RefusalLog

#: The modules of the package that makes the findings.
DIAGNOSIS: Final = Path(diagnosis.__file__).parent


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def why(broker: Running, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask `GET /api/why/PATH`; return its answer, and the `text` of each finding by `problem`.

    Check that the parser of `trellis` accepts the command `next` of the answer and of each finding.
    """
    status, answer = await api(broker, "GET", f"why/{path}")
    assert status == 200, answer
    for part in (answer, *answer["findings"]):
        parsed(part["next"])
    return answer, {finding["problem"]: finding["text"] for finding in answer["findings"]}


def parsed(line: str) -> None:
    """Check that the parser of `trellis` accepts a command line."""
    words = shlex.split(line)
    assert words[0] == "trellis" and parser(words[1]).parse(words[1:]).command == words[1], line


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
    answer, findings = await why(broker, "clients/device")
    assert findings["away"] == (
        "the client is not connected; its session keeps 1 subscription and 1 message for it; if "
        "the client will not return, `trellis sessions delete device` ends the session"
    )
    assert [one["next"] for one in answer["findings"] if one["problem"] == "away"] == [
        "trellis list sessions --filter client_id=device --watch"
    ]
    parsed("trellis sessions delete device")
    assert findings["missed"].endswith("no session keeps (publish with QoS 1): 1")
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
    (row,) = (one.describe() for one in broker.node.mqtt.sessions.all())
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
        "  next: trellis list queues --filter name=q --watch",
    ]
    await publish(broker, "q")
    code, output = await command(capsys, "why", "queue", "q", "--seconds", "0")
    assert code == 1 and output.splitlines()[1:] == [
        "- no consumer is connected, and 1 message waits",
        "  next: trellis list connections",
    ]
    code, output = await command(capsys, "why", "client", "known", "--json")
    answer = json.loads(output)
    assert code == 0 and answer["client"]["connections"] == 1
    parsed(answer["next"])


@pytest.mark.parametrize(
    ("words", "reason", "lists"),
    [
        (("queue", "absent"), "no queue 'absent' in vhost '/'", "list queues"),
        (("queue", "q", "--vhost", "absent"), "there is no vhost 'absent'", "vhosts list"),
        (("client", "absent"), "no client is known as 'absent'", "list connections"),
        (("topic", "t", "--vhost", "absent"), "there is no vhost 'absent'", "vhosts list"),
        (("topic", "t", "--publisher", "absent"), "there is no user 'absent'", "users list"),
    ],
)
async def test_the_error_about_an_unknown_object_names_the_command_that_lists_the_known_ones(
    command: Any,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    reason: str,
    lists: str,
) -> None:
    code = await asyncio.to_thread(main, ["why", *words, "--user", "admin", "--password", "known"])
    error = capsys.readouterr().err.strip()
    assert code == 1 and error.startswith(f"trellis: {reason}")
    assert error.endswith(f"; next: trellis {lists}")
    parsed(f"trellis {lists}")


async def test_a_topic_without_a_subscription_and_one_that_is_denied(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/+/temp")
    capsys.readouterr()
    code, output = await command(capsys, "why", "topic", "plant/7/temp")
    assert code == 0 and output.splitlines() == [
        "topic 'plant/7/temp' in vhost '/': queues and sessions reached: 1",
        "no problem found",
        "  next: trellis tail --mqtt plant/7/temp",
    ]
    code, output = await command(capsys, "why", "topic", "plant/7/Temp")
    assert code == 1
    assert "- no subscription and no binding matches topic 'plant/7/Temp'" in output
    assert "  next: trellis list bindings --filter source=amq.topic\n" in output
    assert "- 'plant/+/temp' of session 'device' almost matches: " in output
    assert output.endswith("  next: trellis why client device\n")
    _, output = await command(capsys, "why", "topic", "firmware/v1.2")
    assert (
        "- no subscription and no binding matches topic 'firmware/v1.2', routing key "
        "'firmware.v1/2' (the topic's '/' is '.' in the key, and its '.' is '/')\n" in output
    )
    assert (await api(broker, "PUT", "users/eve", {"password_hash": "", "tags": ""}))[0] == 201
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    assert (await api(broker, "PUT", "permissions/%2F/eve", everything))[0] == 201
    rules = {"rules": ["deny publish plant/#", "allow all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/eve", rules))[0] in (201, 204)
    code, output = await command(capsys, "why", "topic", "plant/7/temp", "--publisher", "eve")
    assert code == 1 and "- the broker refuses the message: " in output
    assert "  next: trellis permissions list eve" in output
    # A refused message reaches no queue: the heading says which queues match.
    assert output.startswith(
        "topic 'plant/7/temp' in vhost '/': queues and sessions that would get the message if the "
        "broker accepted it: 1\n"
    )
    assert "reached" not in output and "takes the message" not in output
    rules = {"rules": ["allow all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/eve", rules))[0] in (201, 204)
    code, output = await command(capsys, "why", "topic", "plant/7/temp", "--publisher", "eve")
    assert code == 0 and "queues and sessions reached: 1\n" in output


async def test_the_command_after_a_topic_without_a_subscription_shows_or_makes_one(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (await api(broker, "PUT", "vhosts/plant"))[0] == 201
    client = await broker.amqp()
    await client.queue("q")
    none = (
        "- no subscription and no binding matches topic 'a/b'; exchange 'amq.topic' has none "
        "at all: subscribe an MQTT client to the topic, or bind a queue to the exchange\n"
        "  next: trellis bindings declare amq.topic QUEUE a.b"
    )
    _, output = await command(capsys, "why", "topic", "a/b", "--vhost", "plant")
    assert output.endswith(f"{none} --vhost plant\n")
    _, output = await command(capsys, "why", "topic", "a/b")
    assert output.endswith(f"{none}\n")
    # The operator follows the command, with the name of a queue.
    words = shlex.split(output.rpartition("next: trellis ")[2].replace("QUEUE", "q"))
    assert (await command(capsys, *words))[0] == 0
    code, output = await command(capsys, "why", "topic", "a/b")
    assert code == 0 and "queues and sessions reached: 1\n" in output
    _, output = await command(capsys, "why", "topic", "a/c")
    assert output.endswith(
        "- no subscription and no binding matches topic 'a/c'\n"
        "  next: trellis list bindings --filter source=amq.topic\n"
    )
    words = shlex.split(output.rpartition("next: trellis ")[2])
    _, output = await command(capsys, *words)
    assert "a.b" in output


async def test_a_topic_over_http_with_its_rights(broker: Running) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/#")
    answer, findings = await why(broker, "topics/%2F/plant%2F7%2Ftemp?user=known")
    assert findings == {} and answer["topic"] == "plant/7/temp" and answer["vhost"] == "/"
    assert answer["reached"] == 1 and answer["verdicts"] == {"takes": 1}
    assert [row["name"] for row in answer["queues"]] == ["device"]
    for user, status in (("known", 403), ("admin", 404)):
        question = "why/topics/%2F/plant?user=absent"
        assert (await api(broker, "GET", question, user=user))[0] == status


async def test_a_session_cannot_get_a_topic_with_a_wildcard(broker: Running) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/#")
    _, findings = await why(broker, "topics/%2F/plant%2F%2B%2Ftemp")
    assert findings["cannot_represent"] == (
        "session 'device' could not get the message, even if the broker accepted it: its protocol "
        "cannot represent this routing key"
    )
    assert findings["refused"].startswith("the broker refuses the message: topic 'plant/+/temp'")


async def test_an_invalid_topic_leads_neither_to_permissions_nor_to_near_misses(
    broker: Running,
) -> None:
    client = await broker.amqp()
    await client.queue("q", "amq.topic", "a.b")
    for topic, after in (
        ("a/#", "trellis tail --mqtt 'a/#'"),
        ("a/+/c", "trellis tail --mqtt a/+/c"),
        ("$SYS/x", "trellis list bindings --filter source=amq.topic"),
        ("a/" * 300, "trellis list settings --filter name=mqtt.max_levels"),
    ):
        answer, findings = await why(broker, f"topics/%2F/{quote(topic, safe='')}?user=known")
        assert list(findings) == ["refused"] and answer["next"] == after
        assert findings["refused"] == f"the broker refuses the message: {answer['refusal']}"


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
    assert "published during an alarm (flood), and the broker reads" in findings["blocked"]
    assert answer["next"] == "trellis health"
    alarms.set("flood", False)
    await sender.ping()
    assert "blocked" not in (await why(broker, "clients/sender"))[1]


# -- every kind of finding


def values_of(node: ast.expr) -> list[str]:
    """Return possible texts of an expression in a call of `command`; "x" stands for a variable."""
    match node:
        case ast.Constant():
            return [str(node.value)]
        case ast.IfExp():
            return [*values_of(node.body), *values_of(node.orelse)]
        case ast.JoinedStr():
            parts = [one.value if isinstance(one, ast.Constant) else "x" for one in node.values]
            return ["".join(map(str, parts))]
    return ["x"]


def lines_of(call: ast.Call) -> list[str]:
    """Return the command lines that a call of `command` in the package can return."""
    lines: list[list[str]] = [["trellis"]]
    for word in call.args:
        options = [[one] for one in values_of(word)]
        if isinstance(word, ast.Starred):  # `in_vhost` has no word for the default virtual host.
            source = ast.unparse(word.value)
            only = ["--filter", "name=x"] if source.startswith("only(") else None
            vhost = ["--vhost", "x"] if "vhost" in source else None
            options = [only or vhost or ["x"]] + ([[]] if only is None else [])
        lines = [[*line, *option] for line in lines for option in options]
    return [shlex.join(line) for line in lines]


def test_every_finding_has_a_command_that_the_parser_accepts() -> None:
    modules = [ast.parse(path.read_text()) for path in DIAGNOSIS.glob("*.py")]
    functions = {
        node.name: node
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
    }

    def check(expression: ast.expr, owner: ast.FunctionDef) -> None:
        """Check that an expression is a call of `command`, or of a function that returns one."""
        if isinstance(expression, ast.Name):  # A parameter; the callers are checked.
            assert expression.id in {one.arg for one in owner.args.args}, ast.unparse(owner)
            return
        assert isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name)
        name = expression.func.id
        if name == "command":
            for line in lines_of(expression):
                parsed(line)
            return
        returns = [one for one in ast.walk(functions[name]) if isinstance(one, ast.Return)]
        assert returns, name
        for one in returns:
            assert one.value is not None
            check(one.value, functions[name])

    problems = 0
    for function in functions.values():
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "Problem":
                problems += 1
                assert len(node.args) == 3, ast.unparse(node)
                check(node.args[2], function)
            elif node.func.id == "_growth":  # The command is the last argument.
                consumers = node.args[-1]
                assert ast.unparse(consumers) == "next_consumers(vhost, queue)"
                check(consumers, function)
    assert (
        problems == sum(path.read_text().count("Problem(") for path in DIAGNOSIS.glob("*.py")) - 1
    )
    for name in ("follow_topic", "watch_queue", "watch_connection", "watch_session"):
        call = ast.parse(f"{name}()", mode="eval").body
        check(call, functions[name])
