"""Records: all entries survive encoding and decoding; bad data stops the reader with a reason."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.messages.message import (
    PLAIN,
    Address,
    AmendedEncoding,
    Encoding,
    Message,
    PlainEncoding,
)
from broker.store import records
from broker.store.codecs import Codec, Codecs
from broker.store.disk import DamagedStore, StoreError, TooNew
from broker.store.entries import (
    Defined,
    DeliveryCounted,
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    Sequenced,
    StoreEntry,
    StreamExtended,
)
from broker.store.inspect import describe
from broker.store.layout import (
    ANNOTATION_MODULUS,
    BATCH_START,
    CLOSED,
    GROUP,
    HEADER_SIZE,
    KIND_MAX,
    PAYLOAD_MAX,
    QUEUE_SIZE,
    RECORD_PATTERN,
    STORED,
    UNCOPIED_SIZE,
)
from broker.store.reading import (
    BAD,
    END,
    MEMBER_HEADER_SIZE,
    SHORT,
    Decoder,
    RecordReader,
    group_members,
)
from broker.store.records import PART_SIZE, Recorder

SEED = 0x1234


_framed: dict[int, PlainEncoding] = {}


def framed(channel: int) -> PlainEncoding:
    """Return an encoding of message contents for one channel, in place of the encoding of AMQP.

    A PlainEncoding keeps the channel number as a property of the message.
    """
    return _framed.setdefault(channel, PlainEncoding({"channel": channel}))


class FramedCodec(Codec):
    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        if isinstance(encoding, AmendedEncoding):
            _, parameters, _ = self.dump(encoding.source, b"")
            return 1, parameters, b"amended " + content
        return 1, str(encoding.properties(b"")["channel"]).encode(), content

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        assert tag == 1
        return framed(int(parameters))


CODECS = Codecs()
CODECS.register(FramedCodec(), [PlainEncoding, AmendedEncoding], [1])

positions = st.integers(1, (1 << 62))
numbers = st.integers(1, (1 << 62))
#: Routing keys that clients may send, including keys that are not UTF-8.
keys = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")),
)
exchanges = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
vhosts = st.sampled_from(["/", "other", "größe"])


@st.composite
def messages(draw: st.DrawFn) -> Message:
    encoding = draw(st.one_of(st.just(PLAIN), st.integers(1, 65_535).map(framed)))
    content = draw(
        st.one_of(
            st.binary(max_size=300),
            st.just(b"x" * UNCOPIED_SIZE),
            st.just(b"y" * (UNCOPIED_SIZE - 1)),
        )
    )
    message = Message(
        Address(draw(exchanges), draw(keys)), content, encoding, draw(st.integers(0, 2))
    )
    message.expires = draw(st.one_of(st.just(0), st.integers(1, 1 << 45)))
    return message


#: Annotations, including values near ANNOTATION_MODULUS; 0 means no annotation.
serials = st.one_of(
    st.just(0),
    st.integers(-ANNOTATION_MODULUS - 3, -1),
    st.integers(1, ANNOTATION_MODULUS + 3),
    st.integers(1, 1 << 50),
)


@st.composite
def kepts(draw: st.DrawFn) -> MessageStored:
    queues = draw(st.lists(numbers, max_size=4))
    return MessageStored(
        draw(vhosts),
        draw(messages()),
        queues,
        draw(st.one_of(st.none(), st.just([draw(serials) for _ in queues]))),
    )


def wrapped(serials: list[int] | None) -> list[int] | None:
    """Return annotations, the numbers that queues store with a message, as a recovery reads them.

    Their absolute values wrap around at ANNOTATION_MODULUS. If all are 0, return None.
    """
    if not serials or not any(serials):
        return None
    return [
        (abs(serial) - 1) % ANNOTATION_MODULUS + 1
        if serial > 0
        else -((abs(serial) - 1) % ANNOTATION_MODULUS + 1)
        if serial
        else 0
        for serial in serials
    ]


plain_entries: st.SearchStrategy[StoreEntry] = st.one_of(
    kepts(),
    st.builds(MessageSettled, numbers, positions),
    st.builds(PubrecReceived, numbers, positions),
    st.builds(PacketIdHeld, numbers, st.integers(0, 65_535)),
    st.builds(PacketIdReleased, numbers, st.integers(0, 65_535)),
    st.builds(RetainedSet, vhosts, keys, st.one_of(st.none(), messages())),
    st.builds(StreamExtended, numbers, positions),
    st.builds(Sequenced, vhosts, keys, st.integers(-1, 1 << 62)),
    st.builds(DeliveryMark, numbers, st.integers(0, 65_535), positions),
    st.builds(DeliveryCounted, numbers, positions, st.integers(0, (1 << 31) - 1)),
)
entries: st.SearchStrategy[StoreEntry] = st.one_of(
    plain_entries,
    plain_entries,
    st.builds(EntryGroup, st.lists(plain_entries, min_size=1, max_size=4)),
)


@dataclass(frozen=True)
class Seen:
    """A message with all its stored fields."""

    exchange: str
    key: str
    key_bytes: bytes
    topic: bytes
    content: bytes
    encoding: object
    qos: int
    expires: int

    @classmethod
    def of(cls, message: Message | None) -> Seen | None:
        if message is None:
            return None
        address = message.address
        return cls(
            address.exchange,
            address.key,
            address.short_strings,
            address.topic,
            message.content,
            message.encoding,
            message.qos,
            message.expires,
        )


def seen(entry: StoreEntry, position: int) -> list[object]:
    """Return an entry in a form that can be compared."""
    if isinstance(entry, EntryGroup):
        return [seen(one, position + number) for number, one in enumerate(entry.entries)]
    if isinstance(entry, MessageStored):
        return [
            "kept",
            position,
            entry.vhost,
            entry.queues,
            wrapped(entry.annotations),
            Seen.of(entry.message),
        ]
    if isinstance(entry, RetainedSet):
        return ["retained", position, entry.vhost, entry.key, Seen.of(entry.message)]
    if isinstance(entry, (MessageSettled, PubrecReceived)):
        return [type(entry), position, entry.queue, entry.position]
    if isinstance(entry, DeliveryMark):
        return ["marked", position, entry.queue, entry.rank, entry.mark]
    if isinstance(entry, DeliveryCounted):
        return ["counted", position, entry.queue, entry.position, entry.count]
    if isinstance(entry, StreamExtended):
        return ["extended", position, entry.stream, entry.end]
    if isinstance(entry, Sequenced):
        return ["sequenced", position, entry.scope, entry.producer, entry.sequence]
    assert isinstance(entry, (PacketIdHeld, PacketIdReleased))
    return [type(entry), position, entry.session, entry.packet_id]


def width(entry: StoreEntry) -> int:
    return len(entry.entries) if isinstance(entry, EntryGroup) else 1


def encode(*some: StoreEntry, first: int = 1, clock: int = 0) -> bytes:
    recorder = Recorder(CODECS, SEED)
    recorder.clock = clock
    position = first
    for entry in some:
        recorder.add(position, entry)
        position += width(entry)
    batch = recorder.take()
    data = b"".join(batch.parts)
    assert len(data) == batch.size and recorder.count == recorder.size == 0
    return data


def decode(data: bytes, clock: int = 0) -> list[tuple[int, StoreEntry]]:
    decoder, reader = Decoder(CODECS), RecordReader(SEED, 0)
    decoder.clock = clock
    reader.load(data, 0)
    decoded = []
    while reader.advance():
        decoded.append(
            (
                int(reader.position),
                decoder.entry(reader.kind, reader.position, reader.data, reader.start, reader.end),
            )
        )
    assert reader.stop == END and reader.at == len(data)
    return decoded


@given(st.lists(entries, min_size=1, max_size=6), st.integers(1, 1 << 62))
def test_entries_come_back_as_they_went_in_at_their_positions(
    some: list[StoreEntry], first: int
) -> None:
    expected, position = [], first
    for entry in some:
        expected.append((position, seen(entry, position)))
        position += width(entry)
    decoded = decode(encode(*some, first=first))
    assert [(position, seen(entry, position)) for position, entry in decoded] == expected
    for position, entry in decoded:
        for number, one in enumerate(entry.entries if isinstance(entry, EntryGroup) else [entry]):
            if isinstance(one, MessageStored):
                assert one.message.position == position + number and not one.message.retained
            if isinstance(one, RetainedSet) and one.message is not None:
                assert one.message.retained and one.message.position == 0
        assert describe(entry)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_reader_of_incomplete_data_asks_for_more_and_continues(
    some: list[StoreEntry], data: st.DataObject
) -> None:
    encoded = encode(*some)
    cut = data.draw(st.integers(0, len(encoded)))
    reader = RecordReader(SEED, 0)
    reader.load(encoded[:cut], 100)
    while reader.advance():
        pass
    at = int(reader.at)
    assert reader.stop == (END if at == cut else SHORT)
    if reader.stop == SHORT:
        assert cut - at < reader.needed <= len(encoded) - at
    reader.load(encoded[at:], 100 + at)
    while reader.advance():
        pass
    assert reader.stop == END and reader.base + reader.at == 100 + len(encoded)
    assert reader.last == sum(width(entry) for entry in some)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_a_changed_byte_is_always_noticed(some: list[StoreEntry], data: st.DataObject) -> None:
    encoded = bytearray(encode(*some))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    expected = [seen(entry, position) for position, entry in decode(encode(*some))]
    reader, decoder, decoded = RecordReader(SEED, 0), Decoder(CODECS), []
    reader.load(bytes(encoded), 0)
    while reader.advance():
        assert reader.end <= at or reader.record_start > at
        decoded.append(
            seen(
                decoder.entry(reader.kind, reader.position, reader.data, reader.start, reader.end),
                reader.position,
            )
        )
    assert reader.stop == SHORT or reader.stop == BAD and reader.reason
    assert decoded == expected[: len(decoded)] and reader.at <= at


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    reader = RecordReader(SEED, 0)
    reader.load(data, 0)
    assert not reader.advance()
    assert reader.at == 0 and reader.stop in ((END,) if not data else (SHORT, BAD))


@given(st.integers(0, KIND_MAX + 1), st.binary(max_size=80))
@example(GROUP, bytes(4))
@example(GROUP, bytes.fromhex("00000001 07 00000004 00000000"))
def test_a_payload_that_makes_no_sense_is_refused_and_nothing_else(kind: int, data: bytes) -> None:
    try:
        entry = Decoder(CODECS).entry(kind, 1, data, 0, len(data))
    except (DamagedStore, TooNew, UnicodeDecodeError, AssertionError):
        return
    assert seen(entry, 1)


def test_the_first_record_of_a_batch_says_so_and_a_record_looks_like_one() -> None:
    data = encode(MessageSettled(1, 1), MessageSettled(2, 1))
    assert [data[9] & BATCH_START, data[HEADER_SIZE + 16 + 9] & BATCH_START] == [BATCH_START, 0]
    assert [match.start() for match in RECORD_PATTERN.finditer(data)] == [8, HEADER_SIZE + 16 + 8]


def test_positions_must_grow() -> None:
    reader = RecordReader(SEED, 5)
    reader.load(encode(MessageSettled(1, 1), first=5), 0)
    assert (
        not reader.advance()
        and reader.stop == BAD
        and reader.reason == "a record's position 5 is not above 5"
    )


def test_records_of_another_log_are_not_taken_for_ours() -> None:
    reader = RecordReader(SEED + 1, 0)
    reader.load(encode(MessageSettled(1, 1)), 0)
    assert not reader.advance() and reader.stop == BAD


def test_a_newer_record_and_an_unknown_encoding_are_refused_by_name() -> None:
    data = bytearray(encode(MessageSettled(1, 1)))
    data[9] = 77
    data[4:8] = crc32(data[8:], SEED).to_bytes(4, "big")
    reader = RecordReader(SEED, 0)
    reader.load(bytes(data), 0)
    with pytest.raises(TooNew, match="a record has kind 77, which this version of Trellis"):
        reader.advance()
    data = bytearray(encode(MessageStored("/", Message(Address("", "q"), b"x", framed(1), 1), [1])))
    data[HEADER_SIZE + 4 + QUEUE_SIZE + 1] = 9
    with pytest.raises(TooNew, match=r"encoding \(tag 9\)"):
        Decoder(CODECS).entry(STORED, 1, bytes(data), HEADER_SIZE, len(data))
    broken = bytes(data).replace(b"\x01\x09", b"\x01\x01").replace(b"q1x", b"qyx")
    with pytest.raises(
        DamagedStore, match="the stored message has an invalid encoding: invalid literal"
    ):
        Decoder(CODECS).entry(STORED, 1, broken, HEADER_SIZE, len(broken))


def test_entry_too_large_for_a_record_is_refused_and_leaves_the_batch_unchanged() -> None:
    recorder = Recorder(Codecs(), SEED)
    recorder.add(1, MessageSettled(1, 1))
    for entry, reason in (
        (
            MessageStored("/", Message(Address("", "q"), b"", framed(1), 1), [1]),
            "messages with PlainEncoding cannot be stored: no codec is registered",
        ),
        (
            MessageStored("/", Message(Address("", "k" * 65_536), b"", PLAIN, 1), [1]),
            "65536 does not fit into 16 bits",
        ),
        (PacketIdHeld(1, 65_536), "65536 does not fit into 16 bits"),
    ):
        with pytest.raises(StoreError, match=reason):
            recorder.add(2, entry)
    with pytest.raises(AssertionError):
        recorder.add(2, Defined("/", "queue", "q", {}))
    recorder.add(2, MessageSettled(2, 1))
    assert [position for position, _ in decode(b"".join(recorder.take().parts))] == [1, 2]


@pytest.mark.skipif(
    str(records.__file__).endswith(".so"), reason="compiled code accepts no subclass of bytes"
)
def test_a_record_is_never_larger_than_a_reader_takes() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return PAYLOAD_MAX

    recorder = Recorder(CODECS, SEED)
    with pytest.raises(StoreError, match="a record holds at most"):
        recorder.add(1, MessageStored("/", Message(Address("", "q"), Long(b"x"), PLAIN, 1), [1]))
    reader = RecordReader(SEED, 0)
    reader.load((int(PAYLOAD_MAX) + 1).to_bytes(4, "big") + bytes(100), 0)
    assert not reader.advance() and reader.reason == "a record's length is impossible"


def test_a_dead_letter_is_written_by_the_codec_of_its_source() -> None:
    letter = Message(Address("", "q"), b"body", AmendedEncoding(framed(4), {"x-death": []}, {}), 1)
    [(_, entry)] = decode(encode(MessageStored("/", letter, [1])))
    assert isinstance(entry, MessageStored)
    assert entry.message.encoding is framed(4) and entry.message.content == b"amended body"


def test_a_time_to_live_goes_on_in_another_process() -> None:
    message = Message(Address("", "q"), b"", PLAIN, 1)
    message.expires = 5_000
    data = encode(MessageStored("/", message, [1]), clock=1_000_000)
    for clock, expires in ((1_000_000, 5_000), (1_004_000, 1_000), (1_005_000, 1), (2_000_000, 1)):
        [(_, entry)] = decode(data, clock)
        assert isinstance(entry, MessageStored) and entry.message.expires == expires


def test_messages_of_one_address_share_the_address_object() -> None:
    decoded = decode(
        encode(
            *(MessageStored("/", Message(Address("x", "k"), b"", PLAIN, 1), [1]) for _ in range(3))
        )
    )
    assert (
        len({id(entry.message.address) for _, entry in decoded if isinstance(entry, MessageStored)})
        == 1
    )


def test_batch_has_the_figures_that_the_log_needs() -> None:
    recorder = Recorder(CODECS, SEED)
    kept = MessageStored("/", Message(Address("", "q"), b"x" * 3_000, PLAIN, 1), [1, 2])
    for position in range(5, 10):
        recorder.add(position, kept)
    recorder.add(10, MessageSettled(1, 5))
    recorder.add(11, EntryGroup([kept, MessageSettled(1, 6), MessageSettled(2, 6)]))
    batch = recorder.take()
    assert (batch.first, batch.last, batch.count) == (5, 13, 7)
    pairs = array("q", batch.settled.getvalue())
    pairs.byteswap()
    settled = list(pairs[1::2])
    assert settled == [5, 6, 6] and batch.copies == 12
    assert (
        6 * 3_000 < batch.stored_size < 7 * 3_000
        and batch.transient_size == HEADER_SIZE + 16 + 2 * (MEMBER_HEADER_SIZE + 16)
    )
    data = b"".join(batch.parts)
    reader = RecordReader(SEED, 0)
    for position, offset in batch.marks:
        reader.load(data[offset:], offset)
        reader.last = 0
        assert reader.advance() and reader.position == position
    assert batch.marks[0] == (5, 0) and len(batch.marks) == 3


def test_the_records_of_a_batch_are_copied_in_parts_of_bounded_size() -> None:
    recorder = Recorder(CODECS, SEED)
    bodies = [bytes([number % 251]) * 15_000 for number in range(500)]
    for position, body in enumerate(bodies, 1):
        recorder.add(position, MessageStored("/", Message(Address("", "q"), body, PLAIN, 1), [1]))
    batch = recorder.take()
    assert len(batch.parts) == 4 and max(map(len, batch.parts)) < PART_SIZE + 16_000
    decoded = decode(b"".join(batch.parts))
    assert [entry.message.content for _, entry in decoded if isinstance(entry, MessageStored)] == (
        bodies
    )


def test_a_large_group_is_neither_copied_nor_summed_before_it_is_written() -> None:
    recorder = Recorder(CODECS, SEED)
    bodies = [bytes([number]) * 15_000 for number in range(200)]
    entries = [
        MessageStored("/", Message(Address("", "q"), body, PLAIN, 1), [1]) for body in bodies
    ]
    for entry in entries:
        recorder.prepare(entry)
    recorder.add(1, MessageSettled(1, 1))
    recorder.add(2, EntryGroup([*entries, MessageSettled(1, 2)]))
    recorder.add(203, MessageSettled(1, 3))
    recorder.add(204, EntryGroup([*entries, MessageSettled(1, 4)]))
    batch = recorder.take()
    assert sum(map(len, batch.parts)) == batch.size
    parts = {id(part) for part in batch.parts}
    assert all(id(entry.head) in parts and id(entry.content) in parts for entry in entries)
    for _ in range(2):
        batch.complete(SEED)
        assert sum(map(len, batch.parts)) == batch.size and len(batch.parts) < 12
        decoded = decode(b"".join(batch.parts))
        assert [position for position, _ in decoded] == [1, 2, 203, 204]
        for _, group in decoded[1::2]:
            assert isinstance(group, EntryGroup) and len(group.entries) == 201
            assert [
                entry.message.content for entry in group.entries if isinstance(entry, MessageStored)
            ] == bodies


def test_the_entries_of_a_group_must_fill_the_group() -> None:
    data = encode(EntryGroup([MessageSettled(1, 1), MessageSettled(2, 1)]))
    payload = data[HEADER_SIZE:]
    assert [part.position for part in group_members(payload, 7, 0, len(payload))] == [7, 8]
    for broken in (
        payload[:-1],
        payload + b"x",
        (3).to_bytes(4, "big") + payload[4:],
        (1).to_bytes(4, "big") + payload[4:],
    ):
        with pytest.raises(DamagedStore, match="and its members differ in size"):
            Decoder(CODECS).entry(GROUP, 7, broken, 0, len(broken))


def test_a_group_without_an_entry_is_damaged() -> None:
    empty, short, inner = bytes(4), bytes(3), bytes.fromhex("00000001 02 00000010") + bytes(16)
    assert isinstance(Decoder(CODECS).entry(GROUP, 7, inner, 0, len(inner)), EntryGroup)
    for payload in (empty, short):
        with pytest.raises(DamagedStore, match="the group record at position 7 holds no entry"):
            Decoder(CODECS).entry(GROUP, 7, payload, 0, len(payload))
    for kind in (0, GROUP, CLOSED, KIND_MAX + 1):
        payload = (1).to_bytes(4, "big") + bytes([kind]) + len(inner).to_bytes(4, "big") + inner
        with pytest.raises(
            DamagedStore, match=f"holds a record of kind {kind}, which cannot be in a group"
        ):
            Decoder(CODECS).entry(GROUP, 7, payload, 0, len(payload))


@pytest.mark.parametrize(
    "payload", [b"", bytes(3), bytes(4), b"\0\0\0\2" + bytes(9), b"\xff" * 4 + bytes(5)]
)
def test_a_group_that_cannot_hold_its_count_leaves_the_positions_behind_it_as_they_are(
    payload: bytes,
) -> None:
    tail = bytes([1, GROUP]) + bytes(6) + (5).to_bytes(8, "big") + payload
    reader = RecordReader(SEED, 4)
    reader.load(len(payload).to_bytes(4, "big") + crc32(tail, SEED).to_bytes(4, "big") + tail, 0)
    assert not reader.advance() and reader.stop == BAD
    assert reader.reason == "a group record's entry count is impossible"
    assert reader.at == 0 and reader.last == 4
