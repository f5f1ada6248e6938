"""Valid input with random errors in it: no exception escapes, and each message has one fate.

The replies must not depend on how the input is cut into chunks.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.connection.handshake import GREETING
from tests.clients import World, marshal, publication
from tests.wire.amqp.speech import body, content, frame, header, long, method, publish, short, split

Q, B, X = spec.Queue, spec.Basic, spec.Exchange

LOGIN = [
    GREETING,
    marshal(
        0,
        spec.Connection.StartOk(
            {"product": "p", "capabilities": {"authentication_failure_close": True}},
            response="\0guest\0guest",
        ),
    ),
    marshal(0, spec.Connection.TuneOk(100, 4096, 0)),
    marshal(0, spec.Connection.Open()),
    marshal(1, spec.Channel.Open()),
    marshal(2, spec.Channel.Open()),
]
#: One example of each method that a client may send.
TALK = [
    marshal(
        1,
        X.Declare(
            exchange="x",
            exchange_type="topic",
            arguments={"alternate-exchange": "amq.fanout", "odd": [1, {"a": None}]},
        ),
    ),
    marshal(1, X.Declare(exchange="y", exchange_type="headers", auto_delete=True)),
    marshal(1, X.Bind(destination="y", source="x", routing_key="#")),
    marshal(
        1,
        Q.Declare(queue="q", arguments={"x-max-length": 3, "x-dead-letter-exchange": "amq.fanout"}),
    ),
    marshal(1, Q.Declare(queue="")),
    marshal(1, Q.Declare(queue="d", durable=True, nowait=True)),
    marshal(1, Q.Declare(queue="e", exclusive=True, auto_delete=True)),
    marshal(1, Q.Bind(queue="q", exchange="x", routing_key="a.#")),
    marshal(1, Q.Bind(queue="d", exchange="y", arguments={"x-match": "any", "v": 1})),
    marshal(1, Q.Bind(queue="e", exchange="amq.fanout")),
    marshal(1, B.Qos(prefetch_count=2)),
    marshal(2, B.Qos(prefetch_count=3, global_=True)),
    marshal(1, B.Consume(queue="q", consumer_tag="t")),
    marshal(2, B.Consume(queue="e", consumer_tag="u")),
    marshal(2, B.Consume(queue="d", no_ack=True)),
    publication("x", "a.b", b"one"),
    publication("x", "z", b"two", 2, mandatory=True, headers={"v": 1}, delivery_mode=2),
    publication("", "q", b"", expiration="10"),
    publication("", "q", b"three" * 2_000, frame_max=4_096, user_id="guest"),
    publish("x", "a", 0, 2) + header(3, channel=2) + body(b"a", 2) + body(b"bc", 2),
    marshal(1, B.Ack(1)),
    marshal(1, B.Reject(2, requeue=True)),
    marshal(1, B.Nack(0, multiple=True, requeue=False)),
    marshal(1, B.Get(queue="q")),
    marshal(1, B.Recover(requeue=True)),
    method(1, 60, 100, b"\1"),
    marshal(1, B.Cancel("t")),
    marshal(1, Q.Purge(queue="q")),
    marshal(1, spec.Channel.Flow(active=True)),
    marshal(1, Q.Unbind(queue="q", exchange="x", routing_key="a.#")),
    marshal(1, X.Unbind(destination="y", source="x", routing_key="#")),
    method(1, 30, 10, short("/data") + b"\x1f"),
    marshal(1, Q.Delete(queue="d", if_empty=True)),
    marshal(1, X.Delete(exchange="x", nowait=True)),
    frame(8, 0, b""),
    marshal(2, spec.Channel.Close(0, "", 0, 0)),
    marshal(2, spec.Channel.Open()),
    marshal(0, spec.Connection.UpdateSecret("guest", "")),
    publication("nope", "k", b"x"),
    publication("", "q", b"ignored"),
    marshal(1, spec.Channel.CloseOk()),
    marshal(1, spec.Channel.Open()),
    marshal(1, Q.Declare(queue="q", passive=True)),
    publish("", "q", 2) + content(b"immediate"),
    marshal(0, spec.Connection.CloseOk()),
]
CUTS = st.lists(st.integers(1, 600), max_size=12)
#: Bytes that have a special meaning in the protocol.
TELLING = st.sampled_from(
    [
        b"\xce",
        b"\0",
        b"\xff",
        b"\x80",
        b"\1",
        b"\2",
        b"\3",
        b"\x08",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\0",
        b"\x00\x3c\x00\x28",
        b"\x00\x0a\x00\x32",
        b"F",
        b"A",
        b"S\xff\xff\xff\xff",
        b"\xc3",
    ]
)


@st.composite
def streams(draw: Any) -> bytes:
    """Draw the input of a client: methods in any order, some missing, and some bytes changed."""
    talk = draw(
        st.one_of(
            st.just(TALK), st.lists(st.sampled_from(TALK), max_size=25), st.permutations(TALK)
        )
    )
    raw = bytearray(b"".join(LOGIN + talk))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        kind = draw(st.sampled_from(["write", "write", "insert", "drop", "flip"]))
        if kind == "drop":
            del raw[at : at + draw(st.integers(1, 30))]
        elif kind == "flip" and at < len(raw):
            raw[at] ^= 1 << draw(st.integers(0, 7))
        else:
            telling = draw(TELLING | st.binary(max_size=8))
            raw[at : at + (len(telling) if kind == "write" else 0)] = telling
    return bytes(raw)


def heard(raw: bytes, cuts: list[int]) -> tuple[bytes, dict[str, int], dict[str, int], bool, str]:
    """Send input to a new broker in chunks of the sizes `cuts`, and end the connection.

    The store and the agenda run only after the last chunk. Return the output, the fates of messages
    and of their copies, True if the broker has ended the connection, and its reason.
    """
    world = World()
    connection = world.raw_amqp()
    at = 0
    for size in cuts * (len(raw) // max(1, sum(cuts)) + 1):
        connection.receive_data(raw[at : at + size])
        at += size
    connection.receive_data(raw[at:])
    world.settle(connection)
    answer = connection.data_to_send()
    fates, copies = world.fates(), world.copies()
    connection.on_closed()
    world.settle(connection)
    world.fates()
    assert not world.amqp_front.connections and not [
        context for context in world.vhost.contexts if context.users
    ]
    assert world.amqp_front.tally.channels_opened == world.amqp_front.tally.channels_closed
    return answer, fates, copies, connection.finished, connection.reason


@settings(max_examples=250, deadline=None)
@given(streams(), CUTS)
def test_no_chunking_changes_the_answer_to_a_broken_stream(raw: bytes, cuts: list[int]) -> None:
    whole = heard(raw, [])
    assert heard(raw, cuts) == whole
    split(whole[0].removeprefix(GREETING))


def test_the_whole_talk_is_understood() -> None:
    answer, fates, _, _, reason = heard(b"".join(LOGIN + TALK), [])
    # The publication with immediate=true closes the connection.
    assert (
        reason == "protocol_error"
        and answer[-1:] == b"\xce"
        and fates == {"routed": 5, "refused": 1}
    )
    answers = [one.payload[:4] for one in split(answer)]
    assert (
        len(answers) == 44
        and answers[-1] == b"\0\x0a\0\x32"
        and answers.count(b"\0\x14\0\x28") == 1
    )


@settings(max_examples=250, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([10, 20, 30, 40, 50, 60, 85, 90]),
            st.integers(0, 121),
            st.binary(max_size=40)
            | st.lists(
                st.sampled_from(
                    [
                        b"\0\0",
                        short("q"),
                        short(""),
                        short("amq.topic"),
                        b"\0",
                        b"\1",
                        long(b""),
                        bytes(8),
                        b"\xff" * 8,
                        long(short("x-match") + b"S" + long(b"any")),
                    ]
                ),
                max_size=7,
            ).map(b"".join),
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_methods_with_any_arguments_never_escape(
    methods: list[tuple[int, int, bytes]], confirms: bool
) -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", "#")
    if confirms:
        client.send(spec.Confirm.Select())
    client.publish("", "q", b"x")
    for class_id, method_id, arguments in methods:
        client.connection.receive_data(method(1, class_id, method_id, arguments))
        client.read_bytes()
    client.world.fates()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=30), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["q", "d", "l", "h"]),
)
def test_contents_with_any_properties_never_escape_and_are_relayed_as_they_came(
    contents: list[tuple[int, bytes, int]], queue: str
) -> None:
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue("q")
    client.queue("d", durable=True)
    client.queue("l", x_max_length=0, x_dead_letter_exchange="amq.fanout")
    client.queue("h")
    client.send(Q.Bind(queue="h", exchange="amq.headers", arguments={"x-match": "any", "a": 1}))
    client.send(B.Consume(queue=queue, consumer_tag="t", no_ack=True))
    for flags, raw, size in contents:
        flags &= ~0x0110  # Invalid values of expiration and user_id are refused.
        properties = flags.to_bytes(2, "big") + raw
        relayed = content(b"x" * size, properties)
        client.connection.receive_data(
            (publish("amq.headers", "") if queue == "h" else publish("", queue)) + relayed
        )
        answer = client.read_bytes()
        assert answer.endswith(relayed) or queue in "hl"
        client.connection.receive_data(marshal(1, B.Get(queue="dead_letters", no_ack=True)))
        split(client.read_bytes())
    assert not client.connection.finished
    client.world.fates()
