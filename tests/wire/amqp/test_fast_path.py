"""The fast path has the same effects as the slow path: deliveries, fates and counts are equal.

The fast path is possible only for a publication that arrives whole in one chunk. If a chunk ends
within a publication, the broker collects the publication frame by frame, and uses the slow path.
The tests send the same publications in both ways and compare all visible effects. They do this for
each condition that excludes the fast path, and for each input of a routing decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.speech import body, content, header, long, open_channel, publish, short, split

Q, B, X = spec.Queue, spec.Basic, spec.Exchange

#: A function that cuts the frames of publications into chunks: one chunk for all frames, or chunks
#: that never hold a whole message.
Ways = Callable[[list[bytes]], list[bytes]]


def whole(frames: list[bytes]) -> list[bytes]:
    return [b"".join(frames)]


def one_by_one(frames: list[bytes]) -> list[bytes]:
    return frames


def cut_at_the_end(frames: list[bytes]) -> list[bytes]:
    return [piece for one in frames for piece in (one[:-1], one[-1:])]


def cut_in_the_header(frames: list[bytes]) -> list[bytes]:
    return [
        piece
        for one in frames
        for piece in (one[: one.index(b"\xce") + 12], one[one.index(b"\xce") + 12 :])
    ]


def byte_by_byte(frames: list[bytes]) -> list[bytes]:
    return [byte.to_bytes(1, "big") for one in frames for byte in one]


WAYS: list[Ways] = [whole, one_by_one, cut_at_the_end, cut_in_the_header, byte_by_byte]


class Scene:
    """A broker with a publisher, and consumers of many kinds of queues bound to `amq.topic` with
    `k.#`.
    """

    def __init__(self, confirms: bool) -> None:
        limits = BrokerLimits()
        limits.message = 1_000
        world = self.world = World(limits)
        world.guests.identities["u"] = Identity(
            "u", write="amq.topic|amq.default|inner|alt|amq.headers"
        )
        self.readers: list[Any] = []
        keeper = self.keeper = world.amqp()
        keeper.send(
            X.Declare(exchange="inner", exchange_type="fanout"),
            X.Declare(exchange="inside", internal=True),
            X.Declare(exchange="alt", arguments={"alternate-exchange": "inner"}),
            X.Bind(destination="inner", source="amq.topic", routing_key="e.#"),
        )
        keeper.queue("dead_letters", "amq.fanout")
        for name, key, queue in (
            ("plain", "k.#", {}),
            ("kept", "k.d.#", {"durable": True}),
            ("short", "k.l.#", {"x_max_length": 1, "x_dead_letter_exchange": "amq.fanout"}),
            ("mortal", "k.t.#", {"x_message_ttl": 50, "x_dead_letter_exchange": "amq.fanout"}),
            ("full", "k.f.#", {"x_max_length": 1, "x_overflow": "reject-publish"}),
            ("waiting", "k.#", {}),
        ):
            keeper.queue(name, "amq.topic", key, **queue)
        keeper.send(
            Q.Bind(queue="plain", exchange="inner"),
            Q.Bind(queue="plain", exchange="amq.headers", arguments={"v": 1}),
        )
        for frame_max, channel, no_ack in (
            (131_072, 1, True),
            (4_096, 1, False),
            (131_072, 5, False),
        ):
            reader = world.amqp(frame_max)
            if channel != 1:
                open_channel(reader, channel)
            reader.send(B.Consume(queue="plain", consumer_tag="t", no_ack=no_ack), channel=channel)
            self.readers.append(reader)
        self.publisher = world.amqp(user="u")
        if confirms:
            self.publisher.send(spec.Confirm.Select())
        self.answers: list[Any] = []

    def say(self, data: bytes) -> None:
        self.publisher.connection.receive_data(data)

    def seen(self) -> dict[str, Any]:
        """Return the deliveries, fates, confirms and counters that must be equal on both paths."""
        world = self.world
        answers = split(self.publisher.read_bytes())
        read = [one.read_bytes() if isinstance(one, Amqp) else one.read() for one in self.readers]
        world.sleep(100)
        queues = {}
        for name in ("plain", "kept", "short", "mortal", "full", "waiting", "dead_letters"):
            self.keeper.connection.receive_data(marshal(1, B.Get(queue=name, no_ack=True)) * 20)
            queues[name] = [
                one for one in split(self.keeper.read_bytes()) if one.payload != b"\0\x3c\0\x48\0"
            ]
        tally = world.amqp_front.tally
        return {
            "read": read,
            "queues": queues,
            "fates": world.fates(),
            "copies": world.copies(),
            "confirmed": confirmed(answers),
            "other answers": [
                one for one in answers if one.payload[:4] not in (b"\0\x3c\0\x50", b"\0\x3c\0\x78")
            ],
            "stored": sorted(tuple(live.queues) for live in world.store.state.messages.values()),
            "position": world.store.position,
            "tally": (
                tally.received_confirm,
                tally.confirmed,
                tally.returned,
                tally.delivered_auto,
                tally.delivered_manual,
            ),
            "received": [
                (context.front, int(context.received)) for context in world.vhost.contexts
            ],
        }


def confirmed(answers: list[Any]) -> list[tuple[int, bool]]:
    """Return (sequence number, True for ack, False for nack) of each confirmed message."""
    confirms: list[tuple[int, bool]] = []
    for one in answers:
        if one.payload[:4] in (b"\0\x3c\0\x50", b"\0\x3c\0\x78"):
            number, multiple = int.from_bytes(one.payload[4:12], "big"), one.payload[12] == 1
            first = len(confirms) + 1 if multiple else number
            confirms += [(at, one.payload[3] == 0x50) for at in range(first, number + 1)]
    return confirms


def mqtt_at(qos: int) -> Callable[[Scene], None]:
    def listen(scene: Scene) -> None:
        reader = scene.world.mqtt("m")
        reader.subscribe("k/#", qos)
        scene.readers.append(reader)

    return listen


def nothing(scene: Scene) -> None:
    """Do nothing: the scene needs no preparation for this condition."""


T = "amq.topic"
#: Condition -> input (repeated, so that the route is cached) and a function that prepares the
#: scene.
CONDITIONS: dict[str, tuple[list[bytes], Callable[[Scene], None]]] = {
    "nothing special": ([publication(T, "k", b"x")] * 4, nothing),
    "empty bodies": ([publication(T, "k", b"")] * 4, nothing),
    "many body frames": (
        [publish(T, "k") + header(6) + body(b"ab") + body(b"cd") + body(b"ef")] * 3,
        nothing,
    ),
    "empty body frames": (
        [publish(T, "k") + header(4) + body(b"ab") + body(b"") + body(b"cd")] * 3,
        nothing,
    ),
    "a weight": ([publish(T, "k") + header(1, weight=9) + body(b"x")] * 3, nothing),
    "unroutable": ([publication(T, "z", b"x")] * 3, nothing),
    "mandatory with a route": ([publication(T, "k", b"x", mandatory=True)] * 3, nothing),
    "mandatory without a route": (
        [publication(T, "z", b"x", mandatory=True), publication(T, "k", b"x")] * 3,
        nothing,
    ),
    "immediate": (
        [publication(T, "k", b"x")] * 2
        + [publication(T, "k", b"x", immediate=True)]
        + [publication(T, "k", b"x")],
        nothing,
    ),
    "unknown flags": (
        [publish(T, "k", 8) + content(b"x"), publish(T, "z", 9) + content(b"x")] * 2,
        nothing,
    ),
    "expiration": (
        [publication(T, "k", b"x", expiration="10"), publication(T, "k", b"y", expiration="1000")]
        * 2,
        nothing,
    ),
    "bad expiration": (
        [publication(T, "k", b"x")] * 2 + [publication(T, "k", b"x", expiration="soon")],
        nothing,
    ),
    "priority": ([publication(T, "k", b"x", priority=7)] * 3, nothing),
    "own user_id": ([publication(T, "k", b"x", user_id="u")] * 3, nothing),
    "foreign user_id": (
        [publication(T, "k", b"x")] * 2 + [publication(T, "k", b"x", user_id="v")],
        nothing,
    ),
    "delivery_mode 1 to a transient queue": (
        [publication(T, "k", b"x", delivery_mode=1)] * 3,
        nothing,
    ),
    "delivery_mode 2 to a transient queue": (
        [publication(T, "k", b"x", delivery_mode=2)] * 3,
        nothing,
    ),
    "delivery_mode 1 to a durable queue": (
        [publication(T, "k.d", b"x", delivery_mode=1)] * 3,
        nothing,
    ),
    "delivery_mode 2 to a durable queue": (
        [publication(T, "k.d", b"x", delivery_mode=2), publication(T, "k.d", b"x")] * 2,
        nothing,
    ),
    "delivery_mode 2 behind other properties": (
        [
            publication(
                T,
                "k.d",
                b"x",
                delivery_mode=2,
                content_type="t",
                content_encoding="e",
                headers={"a": 1},
            )
        ]
        * 3,
        nothing,
    ),
    "delivery_mode cut off": (
        [publish(T, "k.d") + content(b"x", b"\x10\0"), publish(T, "k") + content(b"x", b"\x10\0")]
        * 2,
        nothing,
    ),
    "delivery_mode behind a cut table": (
        [publish(T, key) + content(b"x", b"\x30\0\xff\xff\xff\xff") for key in ("k", "k.d")] * 2,
        nothing,
    ),
    "delivery_mode behind a cut text": (
        [publish(T, key) + content(b"x", b"\xb0\0\x09a") for key in ("k", "k.d")] * 2,
        nothing,
    ),
    "delivery_mode 7": (
        [publish(T, key) + content(b"x", b"\x10\0\7") for key in ("k", "k.d")] * 2,
        nothing,
    ),
    "expiration cut off": (
        [publication(T, "k", b"x")] * 2 + [publish(T, "k") + content(b"x", b"\1\0\x09a")],
        nothing,
    ),
    "headers": ([publication(T, "k", b"x", headers={"CC": "k.d", "v": 1})] * 3, nothing),
    "every other property": (
        [
            publication(
                T,
                "k",
                b"x",
                content_type="a",
                content_encoding="b",
                correlation_id="c",
                reply_to="d",
                message_id="e",
                message_type="f",
                app_id="g",
            )
        ]
        * 3,
        nothing,
    ),
    "odd flags": ([publish(T, "k") + content(b"x", b"\0\3and more")] * 3, nothing),
    "an internal exchange": (
        [publication(T, "k", b"x"), publication("inside", "k", b"x"), publication(T, "k", b"x")],
        nothing,
    ),
    "no right to publish": (
        [
            publication(T, "k", b"x"),
            publication("amq.direct", "k", b"x"),
            publication(T, "k", b"x"),
        ],
        nothing,
    ),
    "a missing exchange": (
        [publication(T, "k", b"x"), publication("nope", "k", b"x"), publication(T, "k", b"x")],
        nothing,
    ),
    "the largest message": ([publication(T, "k", b"x" * 1_000)] * 3, nothing),
    "a message above the limit": (
        [publication(T, "k", b"x")] * 2 + [publication(T, "k", b"x" * 1_001)],
        nothing,
    ),
    "a message above the limit to nowhere": ([publication("nope", "k", b"x" * 1_001)], nothing),
    "a message whose frames alone are above the limit": (
        [publish(T, "k") + header(500) + body(b"x") * 500] * 2,
        nothing,
    ),
    "a queue with a short memory": (
        [publication(T, "k.l", b"x"), publication(T, "k.l", b"y")] * 2,
        nothing,
    ),
    "a queue with a short life": (
        [publication(T, "k.t", b"x"), publication(T, "k.t", b"y", expiration="5")] * 2,
        nothing,
    ),
    "a persistent letter": (
        [publication(T, "k.l", b"x", delivery_mode=2)] * 3,
        lambda scene: scene.keeper.queue("tomb", "amq.fanout", durable=True),
    ),
    "a queue that refuses": (
        [publication(T, "k.f", b"x"), publication(T, "k.f", b"y", mandatory=True)] * 2,
        nothing,
    ),
    "the default exchange": (
        [
            publication("", "waiting", b"x"),
            publication("", "nope", b"x"),
            publication("", "nope", b"x", mandatory=True),
        ]
        * 2,
        nothing,
    ),
    "a fanout behind a topic": (
        [publication(T, "e.x", b"x"), publication("inner", "", b"x")] * 2,
        nothing,
    ),
    "an alternate exchange": (
        [publication("alt", "x", b"x"), publication("alt", "x", b"x", mandatory=True)] * 2,
        nothing,
    ),
    "a headers exchange": (
        [
            publication("amq.headers", "", b"x", headers={"v": 1}),
            publication("amq.headers", "", b"x", mandatory=True, headers={"v": 2}),
        ]
        * 2,
        nothing,
    ),
    "listeners at most once": (
        [publication(T, "k", b"x"), publication(T, "k", b"y", delivery_mode=2)] * 2,
        mqtt_at(0),
    ),
    "listeners at least once": (
        [publication(T, "k", b"x"), publication(T, "k", b"y", delivery_mode=2)] * 2,
        mqtt_at(1),
    ),
    "a key that mqtt cannot hear": (
        [
            publication(T, "k.#", b"x"),
            publication(T, "k.+", b"x"),
            publish(T, b"k.\xff") + content(b"x"),
        ]
        * 2,
        mqtt_at(0),
    ),
    "keys of 255 bytes": ([publication(T, "k." + "x" * 253, b"x")] * 3, nothing),
    "an exchange that is not text": (
        [publication(T, "k", b"x"), publish(b"\xff", "k") + content(b"x")],
        nothing,
    ),
    "another class": (
        [publication(T, "k", b"x"), publish(T, "k") + header(1, class_id=50) + body(b"x")],
        nothing,
    ),
    "a body too long": (
        [publication(T, "k", b"x"), publish(T, "k") + header(1) + body(b"xy")],
        nothing,
    ),
    "a header on another channel": (
        [publication(T, "k", b"x"), publish(T, "k") + header(1, channel=2) + body(b"x")],
        nothing,
    ),
    "a body on another channel": (
        [publication(T, "k", b"x"), publish(T, "k") + header(1) + body(b"x", channel=2)],
        nothing,
    ),
    "no content": (
        [publication(T, "k", b"x"), publish(T, "k") + marshal(1, Q.Declare(queue="plain"))],
        nothing,
    ),
}


def outcome(condition: str, way: Ways, confirms: bool) -> dict[str, Any]:
    frames, prepare = CONDITIONS[condition]
    scene = Scene(confirms)
    prepare(scene)
    for piece in way(frames):
        scene.say(piece)
    return scene.seen()


@pytest.mark.parametrize("confirms", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_both_paths_look_alike_from_outside(condition: str, confirms: bool) -> None:
    expected = outcome(condition, whole, confirms)
    for way in WAYS[1:]:
        seen = outcome(condition, way, confirms)
        for aspect, value in expected.items():
            assert seen[aspect] == value, (way.__name__, aspect)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "change",
    [
        lambda keeper: keeper.send(Q.Unbind(queue="plain", exchange=T, routing_key="k.#")),
        lambda keeper: keeper.send(Q.Delete(queue="plain")),
        lambda keeper: keeper.send(Q.Bind(queue="short", exchange=T, routing_key="k")),
        lambda keeper: keeper.send(X.Declare(exchange="more")),
        lambda keeper: keeper.queue("another", T, "#"),
        lambda keeper: keeper.world.mqtt("m").subscribe("k", 0),
    ],
)
def test_a_change_counts_from_the_next_message_on_in_both_paths(
    change: Callable[[Amqp], Any], way: Ways
) -> None:
    def seen_with(by: Ways) -> dict[str, Any]:
        scene = Scene(True)
        for _ in range(2):
            for piece in by([publication(T, "k", b"before", delivery_mode=2)] * 2):
                scene.say(piece)
            change(scene.keeper)
            for piece in by([publication(T, "k", b"after", mandatory=True)] * 2):
                scene.say(piece)
        scene.keeper.send(Q.Declare(queue="plain"))
        return scene.seen()

    assert seen_with(way) == seen_with(whole)


KEYS = st.sampled_from(["k", "k.d", "k.l", "k.t", "k.f", "e", "z"])
PUBLICATIONS = st.lists(
    st.tuples(
        KEYS,
        st.booleans(),
        st.binary(max_size=12),
        st.fixed_dictionaries(
            {},
            optional={
                "delivery_mode": st.sampled_from([1, 2]),
                "expiration": st.sampled_from(["0", "10", "1000"]),
                "priority": st.integers(0, 9),
                "user_id": st.just("u"),
                "headers": st.just({"v": 1}),
                "content_type": st.text(max_size=4),
            },
        ),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(PUBLICATIONS, st.lists(st.integers(1, 90), max_size=10), st.booleans(), st.booleans())
def test_any_publications_in_any_chunks_look_alike_from_outside(
    publications: list[Any], cuts: list[int], confirms: bool, listening: bool
) -> None:
    data = b"".join(
        publication(T, key, text, mandatory=mandatory, **given)
        for key, mandatory, text, given in publications
    )
    seen = []
    for pieces in ([], cuts):
        scene = Scene(confirms)
        if listening:
            mqtt_at(0)(scene)
        at = 0
        for size in pieces * (len(data) // max(1, sum(pieces)) + 1):
            scene.say(data[at : at + size])
            at += size
        scene.say(data[at:])
        seen.append(scene.seen())
    assert seen[0] == seen[1]


def test_a_route_that_has_left_the_cache_is_found_again() -> None:
    limits = BrokerLimits()
    limits.routes = 16
    client = World(limits).amqp()
    client.queue("q", T, "#")
    for number in range(200):
        client.publish(T, f"k.{number % 50}", b"x")
    context = next(context for context in client.world.vhost.contexts if context.front == "amqp091")
    assert (
        len(context.routes) <= 16
        and client.world.queue("q").depth == 200
        and client.world.fates() == {"routed": 200}
    )


def test_long_header_tables_are_relayed_on_both_paths() -> None:
    frames = publish(T, "k") + content(
        b"x", b"\x20\0" + long(b"".join(short(f"h{number}") + b"t\1" for number in range(2_000)))
    )
    for pieces in ([frames], [frames[:500], frames[500:]]):
        client = World().amqp()
        client.queue("q", T, "#")
        for piece in pieces:
            client.connection.receive_data(piece)
        client.connection.receive_data(marshal(1, B.Get(queue="q")))
        assert frames[frames.index(b"\xce") + 1 :] in client.read_bytes()
