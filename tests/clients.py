"""Clients for tests that exchange bytes with the real front ends on a real core, in one process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header

from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.broker import Broker
from broker.limits import BrokerLimits
from broker.messages.fates import COPY_FATES, MESSAGE_FATES
from broker.queues.private import Inbox
from broker.queues.queue import Queue
from broker.store.contract import Store, WriteBatch
from broker.store.memory import MemoryStore
from broker.vhost.vhost import VirtualHost
from protocols.amqp.connection.handshake import GREETING
from protocols.amqp.front import AmqpFront
from protocols.amqp.options import AmqpOptions
from protocols.connection import Connection
from protocols.mqtt.front import MqttFront
from protocols.mqtt.options import MqttOptions
from protocols.peer import Peer

Answer = Callable[[Verdict], None]


class Guests(Authenticator):
    """An authenticator that admits the listed users with the password `guest`.

    While `hold` is True, verdicts are held back until the test calls `decide`.
    """

    def __init__(self) -> None:
        self.identities = {"guest": Identity("guest")}
        self.hold = False
        self.held: list[tuple[Answer, Verdict]] = []

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        identity = self.identities.get(credentials.user or "guest")
        known = credentials.user is None or credentials.password == b"guest"
        verdict = Verdict(identity) if known and identity is not None else Verdict(None, "no")
        if self.hold:
            self.held.append((answer, verdict))
        else:
            answer(verdict)

    def renew(self, identity: Identity) -> Identity | None:
        return self.identities.get(identity.name)

    def identity_of(self, user: str) -> Identity | None:
        return self.identities.get(user)

    def decide(self) -> None:
        """Give all verdicts that were held back while `hold` was True."""
        held, self.held = self.held, []
        for answer, verdict in held:
            answer(verdict)


class World:
    """One broker and its connections, driven by the test instead of an event loop.

    `turn` runs one turn of the broker, and makes all changes durable at its end. While `slow_disk`
    is True, changes become durable only when the test calls `durable`.
    """

    def __init__(
        self,
        limits: BrokerLimits | None = None,
        amqp: AmqpOptions | None = None,
        mqtt: MqttOptions | None = None,
        store: Store | None = None,
    ) -> None:
        serial = itertools.count(1)
        self.guests = Guests()
        #: A MemoryStore, unless the test passes another store.
        self.store: Any = store or MemoryStore()
        self.broker = Broker(self.store, self.guests, lambda: f"id-{next(serial)}", limits)
        self.broker.agenda.advance(1_000, 1_700_000_000.0)
        self.vhost: VirtualHost = self.broker.vhosts["/"]
        self.amqp_front = AmqpFront(self.broker, amqp)
        self.mqtt_front = MqttFront(self.broker, mqtt)
        self.slow_disk = False
        self._batches: list[WriteBatch] = []

    def turn(self) -> None:
        """Run the tasks of one turn, and make the store durable."""
        self.broker.agenda.turn()
        if not self.slow_disk:
            self.store.sync()
            self.broker.agenda.turn()

    def review(self) -> None:
        """Authorize all connections and sessions again, because permissions have changed."""
        self.amqp_front.reauthorize()
        self.mqtt_front.reauthorize()
        self.turn()

    def durable(self) -> None:
        """Make the store durable, as if the disk had written everything."""
        self.store.sync()

    def settle(self, *connections: Connection) -> None:
        """Run turns until the broker and these connections have no work left."""
        busy = True
        while busy or not self.broker.agenda.idle:
            self.turn()
            busy = False
            for connection in connections:
                if connection.behind and not connection.stalled:
                    connection.resume()
                    busy = True

    def answer(self, connection: Connection) -> bytes:
        """Run turns until the connection has no work left; return the bytes that it sends."""
        self.turn()
        data = connection.data_to_send()
        while connection.behind and not connection.stalled and not connection.finished:
            connection.resume()
            self.turn()
            data += connection.data_to_send()
        return data

    def sleep(self, milliseconds: int) -> None:
        """Advance the clock by this many milliseconds, and run a turn."""
        agenda = self.broker.agenda
        agenda.advance(int(agenda.now) + milliseconds, agenda.wall + milliseconds / 1000)
        self.turn()

    def queue(self, name: str) -> Queue:
        return self.vhost.queues[name]

    def inbox(self, client_id: str) -> Inbox:
        return self.vhost.inboxes[f"mqtt-subscription-{client_id}qos1"]

    def amqp(
        self, frame_max: int = 131_072, user: str = "guest", vhost: str = "/", **capabilities: bool
    ) -> Amqp:
        return Amqp(self, frame_max, user, vhost, capabilities)

    def mqtt(
        self,
        name: str,
        clean: bool = True,
        will: tuple[str, bytes] | None = None,
        user: str = "",
        will_flags: int = 0,
    ) -> Mqtt:
        return Mqtt(self, name, clean, will, user, will_flags)

    def raw_amqp(self) -> Connection:
        return self.amqp_front.connect(Peer())

    def raw_mqtt(self) -> Connection:
        return self.mqtt_front.connect(Peer())

    def fates(self) -> dict[str, int]:
        """Return, for each fate, how many received messages ended with this fate.

        The result has no fate with 0 messages. Asserts that the counts of all fates of messages add
        up to the number of received messages. Asserts that the counts of all fates of copies, and
        the copies that are still in queues, add up to the number of copies.
        """
        ingress = list(self.vhost.contexts.ingress_counters().values())
        fates = {
            fate: sum(one.fates[at] for one in ingress) for at, fate in enumerate(MESSAGE_FATES)
        }
        assert sum(fates.values()) == sum(one.received for one in ingress)
        census = self.vhost.totals().whole()
        held = int(census.ready + census.unacked + census.inbox_ready + census.inbox_unacked)
        assert sum(census.fates) + held == sum(one.copies for one in ingress)
        return {fate: count for fate, count in fates.items() if count}

    def copies(self) -> dict[str, int]:
        """Return, for each fate, how many copies of messages in queues ended with this fate.

        The result has no fate with 0 copies.
        """
        self.vhost.contexts.ingress_counters()  # This adds the routes' counts.
        census = self.vhost.totals().whole()
        return {fate: census.fates[at] for at, fate in enumerate(COPY_FATES) if census.fates[at]}


class Amqp:
    """An AMQP client with channel 1, which exchanges bytes with the front end of a World."""

    def __init__(
        self, world: World, frame_max: int, user: str, vhost: str, capabilities: dict[str, bool]
    ) -> None:
        self.world = world
        self.connection: Any = world.raw_amqp()
        properties: Any = {
            "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True}
            | capabilities
        }
        self.connection.receive_data(
            GREETING
            + marshal(0, spec.Connection.StartOk(properties, response=f"\0{user}\0guest"))
            + marshal(0, spec.Connection.TuneOk(2047, frame_max, 0))
            + marshal(0, spec.Connection.Open(vhost))
            + marshal(1, spec.Channel.Open())
        )
        self.frame_max = frame_max
        self.greeting = self.read()

    def send(self, *methods: Any, channel: int = 1) -> list[Any]:
        self.connection.receive_data(b"".join(marshal(channel, method) for method in methods))
        return self.read()

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        channel: int = 1,
        mandatory: bool = False,
        **properties: Any,
    ) -> list[Any]:
        self.connection.receive_data(
            publication(exchange, key, body, channel, mandatory, self.frame_max, **properties)
        )
        return self.read()

    def queue(self, name: str, exchange: str = "", key: str = "", **arguments: Any) -> None:
        """Declare a queue, and bind it if an exchange is given.

        Queue arguments are keywords, with `_` for `-`.
        """
        durable = bool(arguments.pop("durable", False))
        self.send(
            spec.Queue.Declare(
                queue=name,
                durable=durable,
                arguments={k.replace("_", "-"): v for k, v in arguments.items()},
            )
        )
        if exchange:
            self.send(spec.Queue.Bind(queue=name, exchange=exchange, routing_key=key))

    def read_bytes(self) -> bytes:
        return self.world.answer(self.connection)

    def read(self) -> list[Any]:
        return unmarshal(self.read_bytes())

    def bodies(self, frames: list[Any] | None = None) -> list[bytes]:
        return [
            frame.value
            for frame in (self.read() if frames is None else frames)
            if isinstance(frame, pamqp.body.ContentBody)
        ]


class Mqtt:
    """An MQTT 3.1.1 client, which exchanges bytes with the front end of a World."""

    def __init__(
        self,
        world: World,
        name: str,
        clean: bool,
        will: tuple[str, bytes] | None,
        user: str,
        will_flags: int,
    ) -> None:
        self.world = world
        self.connection: Any = world.raw_mqtt()
        self.connection.receive_data(connect_packet(name, clean, will, user, will_flags))
        self.greeting = self.read()

    def send(self, data: bytes) -> bytes:
        self.connection.receive_data(data)
        return self.read()

    def subscribe(self, topic_filter: str, qos: int) -> bytes:
        return self.send(packet(0x82, b"\x00\x01" + text(topic_filter) + bytes([qos])))

    def read(self) -> bytes:
        return self.world.answer(self.connection)


def marshal(channel: int, frame: Any) -> bytes:
    return pamqp.frame.marshal(frame, channel)


def start_ok(user: str, password: str, mechanism: str = "PLAIN", **capabilities: bool) -> bytes:
    properties: Any = {
        "product": "test",
        "capabilities": {"authentication_failure_close": True} | capabilities,
    }
    return marshal(0, spec.Connection.StartOk(properties, mechanism, f"\0{user}\0{password}"))


def unmarshal(data: bytes) -> list[Any]:
    frames, at = [], 0
    while at < len(data):
        # pamqp copies all bytes that it gets, so it gets one frame; a protocol header has 8 bytes.
        is_header = data.startswith(b"AMQP", at)
        end = at + 8 + (0 if is_header else int.from_bytes(data[at + 3 : at + 7], "big"))
        size, _, frame = pamqp.frame.unmarshal(data[at:end])
        frames.append(frame)
        at += size
    return frames


def publication(
    exchange: str,
    key: str,
    body: bytes,
    channel: int = 1,
    mandatory: bool = False,
    frame_max: int = 131_072,
    immediate: bool = False,
    **properties: Any,
) -> bytes:
    """Return the frames of a publication."""
    method = _publish_frame(channel, exchange, key, mandatory, immediate)
    try:
        header = _remembered_header(channel, len(body), **properties)
    except TypeError:  # A header with a table cannot be a key of the cache.
        header = _header_frame(channel, len(body), **properties)
    bodies = [
        marshal(channel, pamqp.body.ContentBody(body[at : at + frame_max - 8]))
        for at in range(0, len(body), frame_max - 8)
    ]
    return b"".join([method, header, *bodies])


#: The caches compare types too, because 1, True and 1.0 are equal and have different bytes.
_cached: Final = functools.lru_cache(maxsize=256, typed=True)


@_cached
def _publish_frame(
    channel: int, exchange: str, key: str, mandatory: bool, immediate: bool
) -> bytes:
    method = spec.Basic.Publish(
        exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    return marshal(channel, method)


def _header_frame(channel: int, size: int, **properties: Any) -> bytes:
    header = pamqp.header.ContentHeader(
        body_size=size, properties=spec.Basic.Properties(**properties)
    )
    return marshal(channel, header)


_remembered_header: Final = _cached(_header_frame)


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes) -> bytes:
    length, size_bytes = len(body), b""
    while length >= 128:
        size_bytes += bytes([length & 127 | 128])
        length >>= 7
    return bytes([first]) + size_bytes + bytes([length]) + body


def connect_packet(
    name: str,
    clean: bool = True,
    will: tuple[str, bytes] | None = None,
    user: str = "",
    will_flags: int = 0,
) -> bytes:
    """Return a CONNECT packet; `user` is `name/password`, `will_flags` the QoS and retain bits."""
    flags = (2 if clean else 0) | (4 | will_flags if will else 0) | (0xC0 if user else 0)
    payload = text(name) + (
        text(will[0]) + len(will[1]).to_bytes(2, "big") + will[1] if will else b""
    )
    if user:
        payload += b"".join(text(part) for part in user.split("/"))
    return packet(0x10, text("MQTT") + bytes([4, flags, 0, 60]) + payload)


def mqtt_publish(
    topic: str, body: bytes, qos: int = 0, packet_id: int = 0, flags: int = 0
) -> bytes:
    return packet(
        0x30 | qos << 1 | flags, text(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + body
    )
