"""`trellis queues`, `exchanges` and `bindings`, and the questions that a deletion asks."""

from __future__ import annotations

import re

import pamqp.commands as spec
import pytest

from tests.clients import publication
from tests.top.api_client import api, users
from tests.top.commands import UNASKED, Commands
from tests.top.conftest import Start
from tests.top.running import Running
from tests.top.test_acting_commands import Terminal


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def publish(broker: Running, exchange: str, key: str, count: int) -> None:
    client = await broker.amqp()
    await client.socket.send(publication(exchange, key, b"x") * count)
    # The answer to a later request of the channel says that the messages are routed.
    await client.call(spec.Basic.Qos(), spec.Basic.QosOk)


def without_rates(text: str) -> str:
    """Return a question with the rates and the age of the topic history replaced by words."""
    text = re.sub(r" \([0-9.,]+ messages/s\)", "", text)
    return re.sub(r"of the last [0-9.]+ (ms|s|min)", "of the last hour", text)


async def test_topology_is_declared_once(broker: Running, commands: Commands) -> None:
    vhost = broker.node.broker.vhosts["/"]
    words = ("queues", "declare", "q", "--type", "quorum", "--argument", "x-max-length=7")
    assert await commands.out(*words) == "queue 'q' is declared\n"
    assert await commands.out(*words) == "queue 'q' exists already with these properties\n"
    assert vhost.queues["q"].arguments.arguments == {"x-queue-type": "quorum", "x-max-length": 7}
    assert "inequivalent arg" in await commands.fails("queues", "declare", "q")
    assert await commands.json("exchanges", "declare", "e", "--type", "headers") == {
        "vhost": "/",
        "exchange": "e",
        "changed": True,
    }
    assert "known types are direct" in await commands.fails(
        "exchanges", "declare", "f", "--type", "x"
    )
    binding = ("bindings", "declare", "e", "q", "--argument", "colour=red")
    assert await commands.out(*binding) == "binding '' of 'e' to 'q' is declared\n"
    assert await commands.out(*binding) == "binding '' of 'e' to 'q' exists already\n"
    assert await commands.json("bindings", "declare", "amq.topic", "exchange:e", "a.#") == {
        "vhost": "/",
        "source": "amq.topic",
        "destination": "exchange:e",
        "key": "a.#",
        "changed": True,
    }
    assert [one.arguments for one in vhost.exchanges["e"].all_bindings()] == [{"colour": "red"}]
    assert "--argument: 'colour' must have the form NAME=VALUE" in await commands.fails(
        *("bindings", "declare", "e", "q", "--argument", "colour"), code=2
    )
    assert "--argument x-queue-type=stream contradicts --type quorum" in await commands.fails(
        *("queues", "declare", "s", "--type", "quorum", "--argument", "x-queue-type=stream"), code=2
    )
    await commands.out("queues", "declare", "t", "--transient", "--auto-delete")
    assert (vhost.queues["t"].declared_durable, vhost.queues["t"].auto_delete) == (False, True)


@pytest.mark.parametrize(
    "words",
    [
        ("queues", "declare", ""),
        ("queues", "delete", "", "--yes"),
        ("exchanges", "declare", ""),
        ("exchanges", "delete", "", "--yes"),
        ("bindings", "declare", "amq.topic", "exchange:"),
        ("users", "delete", "", "--yes"),
        ("policies", "clear", ""),
        ("queues", "declare", "q", "--vhost", ""),
    ],
)
async def test_an_empty_name_is_refused(commands: Commands, words: tuple[str, ...]) -> None:
    problem = await commands.fails(*words, code=2)
    assert problem.endswith(" is empty: give a name that is not empty\n"), problem


async def test_the_deletion_of_a_queue_first_says_what_is_lost(
    broker: Running, commands: Commands
) -> None:
    for name in ("orders", "copies"):
        await commands.out("queues", "declare", name)
    await commands.out("bindings", "declare", "amq.topic", "orders", "order.*")
    await commands.out("bindings", "declare", "amq.topic", "copies", "order.paid")
    await publish(broker, "amq.topic", "order.new", 1_200)
    await publish(broker, "amq.topic", "order.paid", 4)
    await publish(broker, "", "orders", 36)
    client = await broker.amqp()
    await client.call(spec.Basic.Qos(prefetch_count=2), spec.Basic.QosOk)
    await client.call(spec.Basic.Consume(queue="orders"), spec.Basic.ConsumeOk)
    code, out, question = await commands.run("queues", "delete", "orders")
    assert (code, out) == (2, "")
    assert without_rates(question) == (
        "queue 'orders' will be deleted with 1,240 messages, of which consumers hold 2\n"
        "1 consumer will be cancelled\n"
        "1 binding will be removed: 'order.*' from 'amq.topic'\n"
        "1,236 messages of the last hour would have become unroutable\n" + UNASKED
    )
    rate = re.search(r" unroutable \(([0-9.,]+) messages/s\)$", question, re.MULTILINE)
    assert rate is not None and 0 < float(rate[1].replace(",", "")) <= 1_236
    assert "orders" in broker.node.broker.vhosts["/"].queues
    assert "in use" in await commands.fails("queues", "delete", "orders", "--if-unused", "--yes")
    commands.terminal = Terminal("y\n")
    code, out, question = await commands.run("queues", "delete", "orders")
    assert (code, out) == (0, "deleted queue 'orders' with 1,240 messages\n")
    assert question.endswith("Continue? [y/N] ")
    assert "orders" not in broker.node.broker.vhosts["/"].queues
    commands.terminal = None
    assert await commands.json("queues", "delete", "copies", "--yes") == {
        "vhost": "/",
        "queue": "copies",
        "messages": 4,
        "changed": True,
    }
    assert await commands.fails("queues", "delete", "orders", "--yes") == (
        "trellis: no queue 'orders' in vhost '/'; next: trellis list queues\n"
    )


async def test_the_deletion_of_exchanges_and_bindings_says_who_loses_messages(
    broker: Running, commands: Commands
) -> None:
    for name in ("temps", "rest"):
        await commands.out("queues", "declare", name)
    await commands.out("exchanges", "declare", "unmatched", "--type", "fanout")
    await commands.out("bindings", "declare", "unmatched", "rest")
    plant = ("exchanges", "declare", "plant", "--argument", "alternate-exchange=unmatched")
    await commands.out(*plant)
    await commands.out("bindings", "declare", "plant", "temps", "*.temp")
    await publish(broker, "plant", "7.temp", 300)
    await publish(broker, "plant", "7.load", 20)
    code, out, question = await commands.run("bindings", "delete", "plant", "temps", "*.temp")
    assert (code, out) == (2, "")
    assert without_rates(question) == (
        "binding '*.temp' of exchange 'plant' to queue 'temps' will be deleted\n"
        "no message of the last hour would have become unroutable\n"
        "queue 'temps' would have lost 300 messages of the last hour\n"
        "queue 'rest' would have gained 300 messages of the last hour\n" + UNASKED
    )
    for number in range(6):
        await api(
            broker, "POST", "bindings/%2F/e/plant/q/rest", {"routing_key": f"unused.{number}"}
        )
    code, out, question = await commands.run("exchanges", "delete", "plant")
    assert without_rates(question) == (
        "exchange 'plant' will be deleted: a client that publishes to it will get the error 404, "
        "which closes the channel\n7 bindings will be removed: "
        "'*.temp' to 'temps', 'unused.0' to 'rest', 'unused.1' to 'rest', "
        "'unused.2' to 'rest', 'unused.3' to 'rest' and 2 more\n"
        "320 messages of the last hour would have become unroutable\n"
        "queue 'temps' would have lost 300 messages of the last hour\n"
        "queue 'rest' would have lost 20 messages of the last hour\n" + UNASKED
    )
    assert await commands.fails("bindings", "delete", "plant", "temps", "x") == (
        "trellis: vhost '/' has no binding 'x' of 'plant' to 'temps' without arguments; `trellis "
        "list bindings` shows all bindings\n"
    )
    assert await commands.out("bindings", "delete", "plant", "temps", "*.temp", "--yes") == (
        "deleted binding '*.temp' of 'plant' to 'temps'\n"
    )
    assert "in use" in await commands.fails(
        *("exchanges", "delete", "unmatched", "--if-unused", "--yes")
    )
    assert await commands.out("exchanges", "delete", "plant", "--yes") == (
        "deleted exchange 'plant'\n"
    )
    assert "plant" not in broker.node.broker.vhosts["/"].exchanges


async def test_the_deletion_of_a_session_says_which_messages_become_unroutable(
    broker: Running, commands: Commands
) -> None:
    screen = await broker.mqtt("screen", user="known/known")
    await screen.subscribe("plant/#")
    await publish(broker, "amq.topic", "plant.7", 12)
    code, _, question = await commands.run("sessions", "delete", "screen")
    assert code == 2
    assert without_rates(question) == (
        "session 'screen' will end: its client will be disconnected, 1 subscription will end, and "
        "0 messages will be discarded\n12 messages of the last hour would have become unroutable\n"
        + UNASKED
    )


async def test_a_user_that_may_not_see_the_topics_gets_the_rest_of_the_consequence(
    broker: Running, commands: Commands
) -> None:
    await commands.out("queues", "declare", "q")
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    await api(broker, "PUT", "permissions/%2F/ann", rights)
    code, _, question = await commands.run("queues", "delete", "q", user="ann")
    assert code == 2
    assert question.startswith(
        "queue 'q' will be deleted with 0 messages\nthe number of messages that become unroutable "
        "is unknown: user 'ann' lacks the tag 'administrator' or 'monitoring'"
    ), question
    assert (await commands.run("queues", "delete", "q", "--yes", user="ann"))[0] == 0
