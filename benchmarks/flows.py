"""What one publication costs inside: octets into the real front ends on the real core, octets out.
No sockets.

    python benchmarks/flows.py [--messages 200000] [--rounds 5] [FLOW...]

Run it with the Python that has the broker installed (`make run` makes .run), from any directory: it
says whether what it measures is compiled. Times are medians of rounds on one thread, so compare
them within one run only. Every flow checks the octets or counts that come out before its time
counts.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path

import broker.queues.queue
from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.access.rules import UserPermissions
from broker.broker import Broker
from broker.store.memory import MemoryStore
from protocols.amqp.front import AmqpFront
from protocols.connection import Connection, Peer
from protocols.mqtt.front import MqttFront

BODY = bytes(range(100))
#: Publications in one received chunk.
BATCH = 100
#: The answers of a client to a chunk of them, made at once: what the clients do must not hide what
#: the broker does.
PUBACKS = struct.Struct(">" + "2sH" * BATCH)
ACKS = struct.Struct(">" + "11sQ2s" * BATCH)
ACK_HEAD = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"


#: Rules about topics, the last of which allows what the flows do.
RULES = [*[f"deny all forbidden/+/{number}/#" for number in range(99)], "allow all #"]


class Everybody(Authenticator):
    """Lets everybody in; with `ruled`, under RULES."""

    ruled = False

    def __init__(self) -> None:
        rights = UserPermissions("guest", "/", (".*", ".*", ".*"), RULES).identity("")
        self._identity = rights if self.ruled else Identity("guest")

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        answer(Verdict(self._identity))


class Bench:
    """A broker and its clients."""

    def __init__(self) -> None:
        self.broker = Broker(MemoryStore(), Everybody(), lambda: "id")
        self.amqp_front, self.mqtt_front = AmqpFront(self.broker), MqttFront(self.broker)

    def mqtt(self, name: str) -> Connection:
        connection = self.mqtt_front.connect(Peer())
        connection.receive_data(packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text(name)))
        assert self.drain(connection) == b"\x20\x02\x00\x00"
        return connection

    def amqp(self) -> Connection:
        connection = self.amqp_front.connect(Peer())
        connection.receive_data(
            b"AMQP\0\0\x09\x01"
            + method(0, 10, 11, table() + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"))
            + method(0, 10, 31, b"\x07\xff\x00\x02\x00\x00\x00\x00")
            + method(0, 10, 40, short("/") + b"\0\0")
            + method(1, 20, 10, b"\0")
        )
        assert b"\x00\x14\x00\x0b" in self.drain(connection)
        return connection

    def drain(self, *connections: Connection) -> bytes:
        """One turn of the loop, as far as the core sees it."""
        self.broker.agenda.turn()
        self.broker.store.sync()
        return b"".join(connection.data_to_send() for connection in connections)


def mqtt_flow(quality: int, readers: int) -> Callable[[int], float]:
    """Publications with this QoS to topics that so many wildcard subscriptions match; QoS 1 is
    acknowledged.
    """

    def flow(messages: int) -> float:
        bench = Bench()
        writer = bench.mqtt("writer")
        listeners = [bench.mqtt(f"reader {number}") for number in range(readers)]
        for reader in listeners:
            reader.receive_data(packet(0x82, b"\x00\x01" + text("room/+/temp") + bytes([quality])))
            bench.drain(reader)
        one = [
            packet(
                0x30 | quality << 1,
                text(f"room/{number % 16}/temp") + (b"\x00\x07" if quality else b"") + BODY,
            )
            for number in range(BATCH)
        ]
        chunk, spent = b"".join(one), 0.0
        for batch in range(messages // BATCH):
            numbers = range(batch * BATCH, (batch + 1) * BATCH)
            acks = (
                PUBACKS.pack(
                    *[field for number in numbers for field in (b"\x40\x02", number % 65_535 + 1)]
                )
                if quality
                else b""
            )
            began = time.perf_counter()
            writer.receive_data(chunk)
            out = bench.drain(*listeners)
            for reader in listeners:
                reader.receive_data(acks)
            confirmed = writer.data_to_send()
            spent += time.perf_counter() - began
            assert len(out) == len(chunk) * readers and (quality or out == chunk * readers)
            assert confirmed == b"\x40\x02\x00\x07" * (BATCH if quality else 0)
        return spent

    return flow


def amqp_flow(readers: int, acks: bool, by_headers: bool = False) -> Callable[[int], float]:
    """Publications to a topic exchange, or one that compares headers, that so many queues are bound
    to, each with a consumer; with acks also confirms."""

    def flow(messages: int) -> float:
        exchange = "amq.headers" if by_headers else "amq.topic"
        wanted = (
            table()
            if not by_headers
            else long(
                short("x-match") + b"S" + long(b"all") + short("kind") + b"S" + long(b"temperature")
            )
        )
        headers = long(short("kind") + b"S" + long(b"temperature")) if by_headers else b""
        bench = Bench()
        writer = bench.amqp()
        if acks:
            writer.receive_data(method(1, 85, 10, b"\0"))
        listeners = [bench.amqp() for _ in range(readers)]
        for number, reader in enumerate(listeners):
            name = short(f"queue-{number}")
            reader.receive_data(
                method(1, 50, 10, b"\0\0" + name + b"\0" + table())
                + method(
                    1,
                    50,
                    20,
                    b"\0\0" + name + short(exchange) + short("room.*.temp") + b"\0" + wanted,
                )
                + method(
                    1, 60, 20, b"\0\0" + name + short("tag") + bytes([0 if acks else 2]) + table()
                )
            )
            bench.drain(reader)
        properties = (b"\x30\x00" if by_headers else b"\x10\x00") + headers + b"\x01"
        content = frame(
            2, 1, b"\x00\x3c\x00\x00" + len(BODY).to_bytes(8, "big") + properties
        ) + frame(3, 1, BODY)
        chunk = b"".join(
            method(1, 60, 40, b"\0\0" + short(exchange) + short(f"room.{number % 16}.temp") + b"\0")
            + content
            for number in range(BATCH)
        )
        spent = 0.0
        bench.drain(writer)
        for batch in range(messages // BATCH):
            last = (batch + 1) * BATCH
            tags = range(batch * BATCH + 1, last + 1) if acks else range(0)
            settled = (
                ACKS.pack(*[field for tag in tags for field in (ACK_HEAD, tag, b"\0\xce")])
                if acks
                else b""
            )
            began = time.perf_counter()
            writer.receive_data(chunk)
            out = bench.drain(*listeners)
            for reader in listeners:
                reader.receive_data(settled)
            confirmed = writer.data_to_send()
            spent += time.perf_counter() - began
            assert out.count(content) == BATCH * readers
            assert confirmed[11:19] == (last.to_bytes(8, "big") if acks else b"")
        return spent

    return flow


FLOWS: dict[str, Callable[[int], float]] = {
    "mqtt-qos0-1-1": mqtt_flow(0, 1),
    "mqtt-qos0-1-10": mqtt_flow(0, 10),
    "mqtt-qos1-1-1": mqtt_flow(1, 1),
    "amqp-auto-ack": amqp_flow(1, False),
    "amqp-ack-confirm": amqp_flow(1, True),
    "amqp-1-10": amqp_flow(10, False),
    "amqp-headers": amqp_flow(1, False, by_headers=True),
}


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 16_384
    return (
        bytes([first])
        + (
            bytes([len(body)])
            if len(body) < 128
            else bytes([len(body) & 127 | 128, len(body) >> 7])
        )
        + body
    )


def short(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def long(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def table() -> bytes:
    return b"\0\0\0\0"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return (
        bytes([kind])
        + channel.to_bytes(2, "big")
        + len(payload).to_bytes(4, "big")
        + payload
        + b"\xce"
    )


def method(channel: int, kind: int, number: int, arguments: bytes) -> bytes:
    return frame(1, channel, kind.to_bytes(2, "big") + number.to_bytes(2, "big") + arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Cost of a publication inside the broker, without sockets."
    )
    parser.add_argument(
        "--messages", type=int, default=100_000, help="publications a round (default %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds, interleaved; the median counts (default %(default)s)",
    )
    parser.add_argument("flow", nargs="*", help=f"which (default all): {', '.join(FLOWS)}")
    parser.add_argument(
        "--rules", action="store_true", help="for a user with 100 rules about topics"
    )
    options = parser.parse_args()
    Everybody.ruled = options.rules
    for name in options.flow:
        if name not in FLOWS:
            parser.error(f"unknown flow {name!r}; known are {', '.join(FLOWS)}")
    chosen = options.flow or list(FLOWS)
    compiled = not (broker.queues.queue.__file__ or "").endswith(".py")
    print(
        f"broker in {Path(broker.queues.queue.__file__ or '').parent}, {'compiled' if compiled else 'NOT compiled'}; "
        f"{options.messages} publications of {len(BODY)} octets, {BATCH} a chunk, median of {options.rounds} rounds"
    )
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(options.rounds):
        for name in chosen:
            times[name].append(FLOWS[name](options.messages) / options.messages * 1e9)
    for name, found in times.items():
        print(
            f"{name:18} {statistics.median(found):8.0f} ns a publication   (rounds {min(found):.0f} to {max(found):.0f})"
        )


if __name__ == "__main__":
    main()
