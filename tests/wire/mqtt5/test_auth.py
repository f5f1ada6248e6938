"""Enhanced authentication: AUTH packets, conversations, and re-authentication (section 4.12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mqtt5
import pytest

from broker.access.identity import AuthConversation, AuthStep, Credentials, Identity, Verdict
from tests.clients import Guests, World
from tests.wire.mqtt5.client import Client5, disconnect_of, members, publish, subscription

CODES = {int(code): code for code in members(mqtt5.AuthReasonCode)}
CONTINUE, AGAIN = CODES[0x18], CODES[0x19]


class Riddle(AuthConversation):
    """An enhanced authentication for tests: the server sends "21", the client must reply "42".

    While `late` of the authenticator is True, the server's answers wait in the authenticator's list
    `steps`, and `Riddling.say` sends them.
    """

    def __init__(self, guests: Riddling, credentials: Credentials) -> None:
        self._guests = guests
        self._credentials = credentials

    def respond(self, data: bytes, answer: Callable[[AuthStep], None]) -> None:
        if data in (b"", b"hello"):
            step = AuthStep(None, b"21")
        elif data == b"42":
            # Each login gets a different identity of the same user. Each identity may read
            # everything.
            identity = Identity("riddler", read=f".*{self._guests.solved}?")
            step = AuthStep(Verdict(identity), b"welcome")
            self._guests.solved += 1
        elif data == b"later":
            step = AuthStep(Verdict(None, "busy", True), b"")
        else:
            step = AuthStep(Verdict(None, "wrong"), b"")
        if self._guests.late:
            self._guests.steps.append((answer, step))
        else:
            answer(step)


class Riddling(Guests):
    """An authenticator with the authentication method RIDDLE."""

    def __init__(self) -> None:
        super().__init__()
        self.solved = 0
        self.late = False
        self.steps: list[tuple[Callable[[AuthStep], None], AuthStep]] = []

    def start_conversation(self, method: str, credentials: Credentials) -> AuthConversation | None:
        return Riddle(self, credentials) if method == "RIDDLE" else None

    def say(self) -> None:
        steps, self.steps = self.steps, []
        for answer, step in steps:
            answer(step)


def riddling() -> tuple[World, Riddling]:
    world, guests = World(), Riddling()
    world.broker.authenticator = guests
    return world, guests


def auth(data: bytes, code: Any = CONTINUE, method: str | None = "RIDDLE") -> bytes:
    return mqtt5.AuthPacket(
        reason_code=code, authentication_method=method, authentication_data=data
    ).write()


def login(world: World, **options: Any) -> Client5:
    client = Client5(world, authentication_method="RIDDLE", **options)
    [connack] = client.send(auth(b"42"))
    assert (
        int(connack.reason_code),
        connack.authentication_method,
        connack.authentication_data,
    ) == (0, "RIDDLE", b"welcome")
    return client


def test_a_client_that_answers_the_challenge_is_logged_in() -> (
    None
):  # [MQTT-4.12.0-2], [MQTT-4.12.0-3], [MQTT-3.15.2-1], [MQTT-3.2.0-1]
    world, _ = riddling()
    client = Client5(world, authentication_method="RIDDLE", authentication_data=b"hello")
    [challenge] = client.greeting
    assert (
        int(challenge.reason_code),
        challenge.authentication_method,
        challenge.authentication_data,
    ) == (0x18, "RIDDLE", b"21")
    [connack] = client.send(auth(b"42"))
    assert int(connack.reason_code) == 0
    assert client.subscribe(subscription("a")) == [[2]]


def test_an_unknown_method() -> None:  # [MQTT-4.12.0-1]
    assert int(Client5(World(), authentication_method="SCRAM-SHA-1").connack.reason_code) == 0x8C


@pytest.mark.parametrize(("data", "code"), [(b"43", 0x87), (b"later", 0x89)])
def test_a_refusal_is_a_connack(data: bytes, code: int) -> None:  # [MQTT-4.12.0-4]
    world, _ = riddling()
    client = Client5(world, authentication_method="RIDDLE")
    [connack] = client.send(auth(data))
    assert (int(connack.reason_code), client.closed) == (code, "login_refused")


@pytest.mark.parametrize(
    "data",
    [
        publish("a"),
        mqtt5.PingReqPacket().write(),
        mqtt5.SubscribePacket(1, [subscription("a")]).write(),
        auth(b"42", AGAIN),
        auth(b"42", method="OTHER"),
        b"\xf0\x02\x18\x00",
        mqtt5.ConnectPacket("c").write(),
    ],
)
def test_other_packets_before_the_verdict_are_a_protocol_error(
    data: bytes,
) -> None:  # [MQTT-3.1.2-30], [MQTT-4.12.0-5]
    world, _ = riddling()
    client = Client5(world, authentication_method="RIDDLE")
    [connack] = client.send(data)
    assert (int(connack.reason_code), client.closed) == (0x82, "protocol_error")
    assert len(world.mqtt_front.sessions) == 0


def test_a_client_may_give_up_in_between() -> None:
    world, _ = riddling()
    client = Client5(world, authentication_method="RIDDLE")
    assert client.send(mqtt5.DisconnectPacket()) == []
    assert client.closed == "client"


def test_answers_may_come_later() -> None:
    world, guests = riddling()
    guests.late = True
    client = Client5(world, authentication_method="RIDDLE")
    assert client.greeting == []
    guests.say()
    assert [type(one) for one in client.read()] == [mqtt5.AuthPacket]
    assert client.send(auth(b"42")) == []
    assert client.send(publish("a", b"x", 1)) == []  # The packet waits for the verdict.
    guests.say()
    assert [type(one) for one in client.read()] == [mqtt5.ConnAckPacket, mqtt5.PubAckPacket]
    gone = Client5(world, "gone", authentication_method="RIDDLE")
    gone.vanish()
    guests.say()
    assert len(world.mqtt_front.sessions) == 1


def test_a_client_authenticates_again_and_publishes_meanwhile() -> None:  # [MQTT-4.12.1-1]
    world, guests = riddling()
    client = login(world)
    [challenge] = client.send(auth(b"", AGAIN))
    assert (int(challenge.reason_code), challenge.authentication_data) == (0x18, b"21")
    assert [int(one.reason_code) for one in client.send(publish("a", b"x", 1))] == [0x10]
    [done] = client.send(auth(b"42"))
    assert (int(done.reason_code), done.authentication_method) == (0, "RIDDLE")
    assert {context.identity.read_pattern for context in world.vhost.contexts if context.users} == {
        ".*1?"
    }
    assert guests.solved == 2
    assert [int(one.reason_code) for one in client.send(publish("a", b"x", 1))] == [0x10]


def test_a_client_that_fails_to_reauthenticate_is_disconnected() -> None:  # [MQTT-4.12.1-2]
    world, _ = riddling()
    client = login(world)
    client.send(auth(b"", AGAIN))
    assert disconnect_of(client, auth(b"43")) == (0x87, "login_refused")


@pytest.mark.parametrize(
    "data",
    [auth(b"42"), auth(b"", AGAIN, "OTHER"), b"\xf0\x00", b"\xf0\x02\x19\x00", b"\xf0\x02\x00\x00"],
)
def test_auth_out_of_place(data: bytes) -> None:
    world, _ = riddling()
    assert disconnect_of(login(world), data) == (0x82, "protocol_error")


def test_auth_without_a_method_in_the_connect() -> None:  # [MQTT-4.12.0-6], [MQTT-4.12.0-7]
    for data in (auth(b"", AGAIN), auth(b"42")):
        assert disconnect_of(Client5(World()), data) == (0x82, "protocol_error")
