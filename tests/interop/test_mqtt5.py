"""Tests of MQTT 5 with the libraries that have it: request, response, shared subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker import BrokerProcess
from tests.foreign import require
from tests.interop.client import PATIENCE


def properties(kind: int, **given: Any) -> Any:
    properties = Properties(kind)  # type: ignore[no-untyped-call]  # paho has no types for it
    for name, value in given.items():
        setattr(properties, name, value)
    return properties


def client(broker: BrokerProcess, name: str, **options: Any) -> aiomqtt.Client:
    return aiomqtt.Client(
        broker.mqtt.host,
        broker.mqtt.port,
        identifier=name,
        protocol=aiomqtt.ProtocolVersion.V5,
        **options,
    )


async def test_request_and_response(broker: BrokerProcess, unique: str) -> None:
    async with client(broker, f"{unique}-a") as asking, client(broker, f"{unique}-b") as answering:
        await asking.subscribe(
            f"{unique}/answers",
            qos=1,
            properties=properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=7),
        )
        await answering.subscribe(
            f"{unique}/questions", options=SubscribeOptions(qos=1, noLocal=True)
        )
        await asking.publish(
            f"{unique}/questions",
            b"?",
            qos=1,
            properties=properties(
                PacketTypes.PUBLISH,
                ResponseTopic=f"{unique}/answers",
                CorrelationData=b"42",
                MessageExpiryInterval=30,
                ContentType="text/plain",
                UserProperty=[("a", "1"), ("a", "2")],
                PayloadFormatIndicator=1,
            ),
        )
        question: Any = await asyncio.wait_for(anext(aiter(answering.messages)), PATIENCE)
        assert question.properties.UserProperty == [("a", "1"), ("a", "2")]
        assert (question.properties.ContentType, question.properties.MessageExpiryInterval) == (
            "text/plain",
            30,
        )
        await answering.publish(
            question.properties.ResponseTopic,
            b"!",
            qos=1,
            properties=properties(
                PacketTypes.PUBLISH, CorrelationData=question.properties.CorrelationData
            ),
        )
        answer: Any = await asyncio.wait_for(anext(aiter(asking.messages)), PATIENCE)
        assert (
            answer.payload,
            answer.properties.CorrelationData,
            answer.properties.SubscriptionIdentifier,
        ) == (b"!", b"42", [7])


async def test_a_shared_subscription_divides_the_messages(
    broker: BrokerProcess, unique: str
) -> None:
    received: list[bytes] = []
    async with (
        client(broker, f"{unique}-1") as one,
        client(broker, f"{unique}-2") as two,
        client(broker, f"{unique}-w") as writer,
    ):
        for member in (one, two):
            await member.subscribe(f"$share/group/{unique}/#", qos=1)
        for number in range(20):
            await writer.publish(f"{unique}/{number}", b"%d" % number, qos=1)
        for member in (one, two):
            messages = aiter(member.messages)
            for _ in range(10):
                message = await asyncio.wait_for(anext(messages), PATIENCE)
                received.append(bytes(message.payload))
    assert sorted(received) == sorted(b"%d" % number for number in range(20))


async def test_mosquitto_request_is_answered(broker: BrokerProcess, unique: str) -> None:
    """Check that mosquitto_rr, which sends a request with a response topic, gets the response."""
    require("mosquitto")
    async with client(broker, unique) as answering:
        await answering.subscribe(f"{unique}/ask", qos=1)
        asking = await asyncio.create_subprocess_exec(
            "mosquitto_rr",
            "-h",
            broker.mqtt.host,
            "-p",
            str(broker.mqtt.port),
            "-V",
            "5",
            "-t",
            f"{unique}/ask",
            "-e",
            f"{unique}/answer",
            "-m",
            "?",
            "-q",
            "1",
            "-W",
            str(int(PATIENCE)),
            "-D",
            "publish",
            "user-property",
            "k",
            "v",
            stdout=asyncio.subprocess.PIPE,
        )
        question: Any = await asyncio.wait_for(anext(aiter(answering.messages)), PATIENCE)
        assert (question.payload, question.properties.UserProperty) == (b"?", [("k", "v")])
        await answering.publish(question.properties.ResponseTopic, b"answered", qos=1)
        out, _ = await asyncio.wait_for(asking.communicate(), PATIENCE)
        assert (out.strip(), asking.returncode) == (b"answered", 0)
