"""The consequences that commands print before they delete policies, permissions, roles, vhosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pytest

from broker.queues.arguments import BY_POLICY
from tests.clients import mqtt_publish, publication
from tests.test_completion import commands as declared
from tests.top.api_client import api, users
from tests.top.commands import UNASKED, Commands
from tests.top.conftest import Start
from tests.top.running import Amqp0, Running
from trellis.http.management import policy_change
from trellis.http.management.policy_change import EFFECTS, SHOWN

#: Last words of commands that delete, discard or stop something.
DESTRUCTIVE: Final = (
    "delete",
    "clear",
    "purge",
    "pause",
    "close",
    "move",
    "redrive",
    "adopt",
    "forget",
    "switch",
    "set",
    "assign",
    "tags",
)


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def put(broker: Running, path: str, body: Any = None) -> None:
    assert (await api(broker, "PUT", path, body))[0] in (201, 204), path


async def consequences(commands: Commands, *words: str) -> list[str]:
    """Run a command without --yes and without a terminal; return the lines before its error."""
    code, out, err = await commands.run(*words)
    assert (code, out) == (2, "") and err.endswith(UNASKED), err
    return err.removesuffix(UNASKED).splitlines()


async def test_a_policy_names_the_queues_that_change_and_how(
    broker: Running, commands: Commands
) -> None:
    definition = {"max-length": 100, "dead-letter-exchange": "lost", "overflow": "reject-publish"}
    for name, body in (
        ("p", {"pattern": "^o", "definition": definition, "priority": 2}),
        ("all", {"pattern": "", "definition": {"max-length": 3}, "apply-to": "queues"}),
        ("ex", {"pattern": "^shop$", "definition": {"alternate-exchange": "lost"}}),
    ):
        await put(broker, f"policies/%2F/{name}", body)
    await put(broker, "queues/%2F/orders")
    # The queue's own limit is lower than the limit of each policy.
    await put(broker, "queues/%2F/own", {"arguments": {"x-max-length": 2}})
    await put(broker, "queues/%2F/plain")
    await put(broker, "exchanges/%2F/shop", {"type": "topic"})
    client = await broker.amqp()
    await client.socket.send(publication("", "orders", b"x") * 5)
    queue = broker.node.broker.vhosts["/"].queues["orders"]
    await broker.until(lambda: queue.depth == 5)
    change = (
        "max-length 100 -> 3, overflow 'reject-publish' -> 'drop-head', dead-letter-exchange "
        "'lost' -> not set (policy 'all')"
    )
    assert await consequences(commands, "policies", "clear", "p") == [
        (
            "policy 'p' in vhost '/' will be deleted: the arguments of 2 queues and 0 exchanges "
            "will change"
        ),
        f"queue 'orders': {change}; 5 messages in the queue",
        f"queue 'own': {change.partition(', ')[2]}",
        "2 messages beyond a queue limit will be dropped",
    ]
    assert queue.depth == 5 and queue.arguments.max_length == 100
    assert await consequences(commands, "policies", "clear", "ex") == [
        (
            "policy 'ex' in vhost '/' will be deleted: the arguments of 0 queues and 1 exchange "
            "will change"
        ),
        "exchange 'shop': alternate-exchange 'lost' -> not set",
    ]
    assert await commands.out("policies", "clear", "p", "--yes") == (
        "deleted policy 'p' in vhost '/'\n"
    )
    await broker.until(lambda: queue.depth == 3)
    assert queue.arguments.max_length == 3


async def test_setting_a_policy_asks_if_queues_lose_messages(
    broker: Running, commands: Commands
) -> None:
    await put(broker, "queues/%2F/orders")
    await put(broker, "queues/%2F/kept", {"arguments": {"x-overflow": "reject-publish"}})
    await put(broker, "policies/%2F/less", {"pattern": "^o", "definition": {"max-length": 4}})
    for name in ("orders", "kept"):
        await publish(broker, name, [1] * 4)
    queues = broker.node.broker.vhosts["/"].queues
    # No message is lost: the command does not ask.
    for definition in ('{"max-length": 4}', '{"message-ttl": 1000000}'):
        await commands.out("policies", "set", "p", "", definition, "--priority", "1")
    assert queues["orders"].depth == 4
    change = (
        "message-ttl 1000000 -> not set, max-length not set -> 3 (policy 'p'); "
        "4 messages in the queue"
    )
    words = ("policies", "set", "p", "", '{"max-length": 3}', "--priority", "1")
    assert await consequences(commands, *words) == [
        (
            "policy 'p' in vhost '/' will be set: the arguments of 2 queues and 0 exchanges will "
            "change"
        ),
        f"queue 'orders': {change}",
        f"queue 'kept': {change}",
        "1 message beyond a queue limit will be dropped",
    ]
    assert queues["orders"].depth == 4 and queues["orders"].arguments.max_length != 3
    # A policy of a lower priority has no effect.
    await commands.out("policies", "set", "low", "", '{"max-length": 1}', "--priority", "-1")
    await commands.out(*words, "--yes")
    await broker.until(lambda: queues["orders"].depth == 3)
    assert queues["kept"].depth == 4


async def test_a_policy_of_many_queues_names_those_that_lose_most_messages(
    broker: Running, commands: Commands
) -> None:
    for number in range(10 * SHOWN + 5):
        broker.node.broker.vhosts["/"].declarations.declare_queue(f"q{number}")
    for name, length, priority in (("p", 9, 1), ("less", 1, 0)):
        body = {"pattern": "^q", "definition": {"max-length": length}, "priority": priority}
        await put(broker, f"policies/%2F/{name}", body)
    client = await broker.amqp()
    for name, count in (("q7", 4), ("q204", 3)):
        await client.socket.send(publication("", name, b"x") * count)
    vhost = broker.node.broker.vhosts["/"]
    await broker.until(lambda: vhost.queues["q204"].depth == 3)
    status, answer = await api(broker, "GET", "consequences/policies/%2F/p")
    assert status == 200 and (answer["queues"], answer["dropped"]) == (10 * SHOWN + 5, 5)
    assert len(answer["changes"]) == SHOWN
    assert [(row["name"], row["dropped"]) for row in answer["changes"][:2]] == [
        ("q7", 3),
        ("q204", 2),
    ]
    lines = await consequences(commands, "policies", "clear", "p")
    assert lines[-2:] == [
        f"further queues and exchanges whose arguments will change: {10 * SHOWN}",
        "5 messages beyond a queue limit will be dropped",
    ]


async def publish(broker: Running, queue: str, sizes: list[int]) -> None:
    """Publish messages with bodies of these sizes in bytes; wait until they are in the queue."""
    client = await broker.amqp()
    for size in sizes:
        await client.socket.send(publication("", queue, b"x" * size))
    known = broker.node.broker.vhosts["/"].queues
    await broker.until(lambda: known[queue].depth == len(sizes))


async def lose(broker: Running, policy: str) -> tuple[Any, dict[str, int]]:
    """Return the announced consequences of deleting a policy; then delete the policy, and return
    the number of messages that left each queue.
    """
    status, answer = await api(broker, "GET", f"consequences/policies/%2F/{policy}")
    assert status == 200
    queues = broker.node.broker.vhosts["/"].queues
    before = {name: int(queue.depth) for name, queue in queues.items()}
    expected = {row["name"]: row["dropped"] + row["dead_lettered"] for row in answer["changes"]}
    assert (await api(broker, "DELETE", f"policies/%2F/{policy}"))[0] == 204

    def lost() -> dict[str, int]:
        return {name: before[name] - int(queues[name].depth) for name in expected}

    await broker.until(lambda: lost() == expected)
    return answer, expected


@pytest.mark.parametrize("cut", [0, 100, 250, 251, 1000])
async def test_messages_over_a_limit_in_bytes_are_counted_as_the_broker_drops_them(
    broker: Running, cut: int
) -> None:
    await put(broker, "queues/%2F/q", {"arguments": {"x-max-priority": 3}})
    await put(broker, "queues/%2F/r")
    for name, limit, priority in (("p", 900, 1), ("less", cut, 0)):
        body = {"pattern": "", "definition": {"max-length-bytes": limit}, "priority": priority}
        await put(broker, f"policies/%2F/{name}", body | {"apply-to": "queues"})
    sizes = [100, 50, 0, 200, 50]
    for name in ("q", "r"):
        await publish(broker, name, sizes)
    answer, lost = await lose(broker, "p")
    left = next(at for at in range(6) if sum(sizes[at:]) <= cut)
    assert lost == {"q": left, "r": left} and answer["dropped"] == 2 * left
    assert (answer["dead_lettered"], answer["uncounted"]) == (0, 0)


async def test_dead_letters_are_not_counted_as_dropped(broker: Running, commands: Commands) -> None:
    await put(broker, "queues/%2F/dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await put(broker, "queues/%2F/q", {"arguments": arguments})
    for name, limit, priority in (("p", 9, 1), ("less", 2, 0)):
        body = {"pattern": "^q", "definition": {"max-length": limit}, "priority": priority}
        await put(broker, f"policies/%2F/{name}", body)
    await publish(broker, "q", [1] * 5)
    lines = await consequences(commands, "policies", "clear", "p")
    assert lines[-1] == (
        "3 messages beyond a queue limit will go to the dead letter exchange of the queue"
    )
    answer, lost = await lose(broker, "p")
    assert (answer["dropped"], answer["dead_lettered"], lost) == (0, 3, {"q": 3})
    queues = broker.node.broker.vhosts["/"].queues
    await broker.until(lambda: queues["dead"].depth == 3)


async def test_rows_of_a_stream_over_a_limit_are_counted(broker: Running) -> None:
    stream = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 4096}
    await put(broker, "queues/%2F/s", {"arguments": stream})
    for name, limit, priority in (("p", 1 << 20, 1), ("less", 10_000, 0)):
        body = {"pattern": "^s", "definition": {"max-length-bytes": limit}, "priority": priority}
        await put(broker, f"policies/%2F/{name}", body)
    await publish(broker, "s", [1_000] * 40)
    await broker.until(lambda: broker.durable_rows("s") == 40)
    answer, lost = await lose(broker, "p")
    assert 0 < answer["dropped"] < 40 and lost == {"s": answer["dropped"]}


async def test_the_number_of_examined_bodies_is_bounded(
    broker: Running, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_change, "BODIES_MAX", 2)
    for name, limit, priority in (("p", 900, 1), ("less", 0, 0)):
        body = {"pattern": "^q", "definition": {"max-length-bytes": limit}, "priority": priority}
        await put(broker, f"policies/%2F/{name}", body)
    for name in ("q1", "q2"):
        await put(broker, f"queues/%2F/{name}")
        await publish(broker, name, [1, 1, 1])
    _, answer = await api(broker, "GET", "consequences/policies/%2F/p")
    assert (answer["uncounted"], answer["dropped"]) == (1, 3)
    assert (await consequences(commands, "policies", "clear", "p"))[-1] == (
        "1 queue may lose further messages, which exceed the limit max-length-bytes"
    )


def test_every_key_of_a_policy_about_queues_can_change() -> None:
    assert set(EFFECTS) == set(BY_POLICY)


async def user_with_clients(broker: Running, **fields: str) -> Amqp0:
    """Create the user ann with an AMQP connection, and an MQTT session with a message.

    Return the client of the AMQP connection, which stays open while the test refers to the client.
    """
    await put(broker, "users/ann", {"password": "secret", "tags": ""} | fields)
    if not fields:
        rights = {"configure": "", "write": "^amq", "read": ".*"}
        await put(broker, "permissions/%2F/ann", rights)
        await put(broker, "topic-rules/%2F/ann", {"rules": ["allow all #"]})
    client = await broker.amqp("ann", "secret")
    device = await broker.mqtt("device", user="ann/secret", clean=False)
    await device.subscribe("a", 1)
    await device.leave()
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("a", b"x", 1, 1))
    await broker.until(lambda: any(one.inbox.depth == 1 for one in broker.node.mqtt.sessions.all()))
    return client


async def test_permissions_name_the_rights_and_clients_that_end(
    broker: Running, commands: Commands
) -> None:
    client = await user_with_clients(broker)
    assert await consequences(commands, "permissions", "clear", "ann") == [
        (
            "user 'ann' will lose its access to vhost '/': configure '', write '^amq', read '.*', "
            "1 topic rule"
        ),
        "1 open connection will be closed, and 1 MQTT session with 1 message will end",
    ]
    grant = {"configure": "", "write": "", "read": ".*", "rules": []}
    await put(broker, "roles/devices", {"vhosts": {"/": grant}})
    await put(broker, "users/ann", {"password": "secret", "tags": "", "role": "devices"})
    lines = await consequences(commands, "permissions", "clear", "ann")
    assert lines[0].startswith(
        "user 'ann' will lose its own permissions in vhost '/': configure ''"
    )
    assert lines[1].endswith("will then have the permissions of role 'devices'")
    await commands.out("permissions", "clear", "ann", "--yes")
    assert "no permissions in vhost" in await commands.fails("permissions", "clear", "ann")
    problem = await commands.fails("permissions", "clear", "known")
    assert "are defined in the settings" in problem
    # The role permits the connection.
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)


async def test_a_role_names_the_users_that_lose_it(broker: Running, commands: Commands) -> None:
    grant = {"configure": "", "write": ".*", "read": ".*", "rules": ["allow all #"]}
    await put(broker, "vhosts/v")
    await put(broker, "roles/devices", {"vhosts": {"/": grant, "v": grant}})
    client = await user_with_clients(broker, role="devices")
    await put(broker, "users/bob", {"password": "secret", "tags": "", "role": "devices"})
    rights = {"configure": "", "write": "", "read": ".*"}
    await put(broker, "permissions/%2F/bob", rights)
    assert await consequences(commands, "roles", "clear", "devices") == [
        (
            "role 'devices' will lose its permissions in vhost '/': configure '', write '.*', "
            "read '.*', 1 topic rule"
        ),
        (
            "2 users have role 'devices': 1 user will lose access to vhost '/', and 1 keeps other "
            "permissions in the vhost"
        ),
        "1 open connection will be closed, and 1 MQTT session with 1 message will end",
    ]
    assert "users with this role: 2" in await commands.fails("roles", "delete", "devices")
    await commands.out("roles", "assign", "--none", "ann", "bob", "--yes")
    assert await client.socket.read_to_end()
    lines = await consequences(commands, "roles", "delete", "devices")
    assert lines[0] == "role 'devices', which no user has, will be deleted"
    assert len(lines) == 3 and "will lose its permissions in vhost 'v'" in lines[2]
    assert (await api(broker, "GET", "roles/devices"))[0] == 200
    await commands.out("roles", "delete", "devices", "--yes")
    assert (await api(broker, "GET", "consequences/roles/devices"))[0] == 404


async def test_a_virtual_host_names_what_is_deleted_and_what_becomes_unroutable(
    broker: Running, commands: Commands
) -> None:
    await put(broker, "vhosts/v")
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    await put(broker, "permissions/v/admin", rights)
    await put(broker, "queues/v/rows", {"arguments": {"x-queue-type": "stream"}})
    for name in ("orders", "empty"):
        await put(broker, f"queues/v/{name}")
    await put(broker, "exchanges/v/shop", {"type": "topic"})
    await put(broker, "policies/v/p", {"pattern": "", "definition": {"max-length": 9}})
    await put(broker, "users/ann", {"password": "secret", "tags": ""})
    await put(broker, "permissions/v/ann", rights)
    message = {"properties": {}, "payload": "x", "payload_encoding": "string"}
    for exchange, key in (("amq.default", "orders"), ("shop", "nothing"), ("shop", "nothing")):
        body = message | {"routing_key": key}
        assert (await api(broker, "POST", f"exchanges/v/{exchange}/publish", body))[0] == 200
    lines = await consequences(commands, "vhosts", "delete", "v")
    lines = [re.sub(r"of the last [0-9.]+ m?s|\(.*/s\)", "…", line) for line in lines]
    assert [line for line in lines if " arrive in the vhost now" not in line] == [
        "vhost 'v' will be deleted with 2 queues and 1 message; 0 connections will be closed",
        "queues with the most messages: 1 in 'orders'",
        "these objects will be deleted, too: 1 stream, 1 exchange, 1 policy",
        "2 users will lose permissions in vhost 'v'",
        "3 messages … would have become unroutable …",
    ]
    out = await commands.json("vhosts", "delete", "v", "--yes")
    assert (out["queues"], out["messages"], out["changed"]) == (2, 1, True)
    assert "there is no vhost 'v'" in await commands.fails("vhosts", "delete", "v")


async def test_a_delayed_message_is_shown_before_it_is_cancelled(
    broker: Running, commands: Commands
) -> None:
    arguments = {"x-delayed-type": "direct"}
    await put(broker, "exchanges/%2F/later", {"type": "x-delayed-message", "arguments": arguments})
    await put(broker, "queues/%2F/q")
    await api(broker, "POST", "bindings/%2F/e/later/q/q", {"routing_key": "k"})
    client = await broker.amqp()
    delay = {"x-delay": 3_600_000}
    await client.socket.send(publication("later", "k", b"later", headers=delay))
    delays = broker.node.broker.vhosts["/"].delays
    await broker.until(lambda: "later" in delays and delays["later"].depth == 1)
    (row,) = await commands.json("list", "delayed")
    cancel = ["list", "delayed", "--cancel", f"/:later:{row['id']}"]
    (line,) = await consequences(commands, *cancel)
    assert line.startswith(
        f"delayed message {row['id']} of exchange 'later' in vhost '/' will be removed: routing "
        "key 'k', 5 B, due in "
    )
    assert delays["later"].depth == 1
    assert await commands.out(*cancel, "--yes") == "no delayed messages\n"
    assert "no message 99 is delayed by exchange 'later'" in await commands.fails(
        "list", "delayed", "--cancel", "/:later:99"
    )


async def test_consequences_need_the_rights_of_the_deletion(broker: Running) -> None:
    await put(broker, "users/ann", {"password": "known", "tags": "management"})
    await put(broker, "roles/devices", {"vhosts": {}})
    for path in ("policies/%2F/p", "permissions/%2F/ann", "roles/devices", "vhosts/%2F"):
        assert (await api(broker, "GET", f"consequences/{path}", user="ann"))[0] == 403, path


def test_each_destructive_command_asks_and_the_page_lists_all_that_ask() -> None:
    every = [one for one in declared() if not one.children]
    asking = {
        one.path.removeprefix("trellis ")
        for one in every
        if any("--yes" in flag.names for flag in one.flags)
    }
    destructive = {one.path.removeprefix("trellis ") for one in every if one.name in DESTRUCTIVE}
    assert destructive <= asking
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    section = page.partition("## The question before a change")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `trellis ([a-z -]+?)` \|", section, re.MULTILINE))
    longer = {"list": "list delayed --cancel", "definitions": "definitions import"}
    assert listed == {longer.get(name, name) for name in asking}
