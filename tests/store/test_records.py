"""Records: every entry comes back as it went in; whatever octets come, the reader says where and why it stops."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.message import PLAIN, Address, Amended, Encoding, Message, Plain
from broker.store import records
from broker.store.codecs import Codec, Codecs
from broker.store.contract import Defined, Entry, Extended, Kept, Many, Received, Released, RetainedSet, Sequenced, Settled, Stepped
from broker.store.disk import Damaged, StoreError, TooNew
from broker.store.inspect import describe
from broker.store.layout import APART, CLOSED, FIRST, HEADER, HOLDER, KEPT, LIKENESS, MANY, PAYLOAD_MAX, SEQUENCED, SERIALS
from broker.store.reading import BAD, END, SHORT, Decoder, Reader, parts
from broker.store.records import Recorder

SEED = 0x1234


_framed: dict[int, Plain] = {}


def framed(channel: int) -> Plain:
    """An encoding with a parameter, as a front end has them. (A compiled Encoding has no subclasses here.)"""
    return _framed.setdefault(channel, Plain({"channel": channel}))


class FramedCodec(Codec):
    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        if isinstance(encoding, Amended):
            _, parameters, _ = self.dump(encoding.source, b"")
            return 1, parameters, b"amended " + content
        return 1, str(encoding.properties(b"")["channel"]).encode(), content

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        assert tag == 1
        return framed(int(parameters))


CODECS = Codecs()
CODECS.register(FramedCodec(), [Plain, Amended], [1])

positions = st.integers(1, (1 << 62))
numbers = st.integers(1, (1 << 62))
#: Keys as they come off the wire, also what is no UTF-8.
keys = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
                 st.binary(max_size=60).map(lambda octets: octets.decode("utf-8", "surrogateescape")))
exchanges = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
vhosts = st.sampled_from(["/", "other", "größe"])


@st.composite
def messages(draw: st.DrawFn) -> Message:
    encoding = draw(st.one_of(st.just(PLAIN), st.integers(1, 65_535).map(framed)))
    content = draw(st.one_of(st.binary(max_size=300), st.just(b"x" * APART), st.just(b"y" * (APART - 1))))
    message = Message(Address(draw(exchanges), draw(keys)), content, encoding, draw(st.integers(0, 2)))
    message.expires = draw(st.one_of(st.just(0), st.integers(1, 1 << 45)))
    return message


#: Of sessions, near where they begin anew; 0 where nobody asks.
serials = st.one_of(st.just(0), st.integers(-SERIALS - 3, -1), st.integers(1, SERIALS + 3), st.integers(1, 1 << 50))


@st.composite
def kepts(draw: st.DrawFn) -> Kept:
    queues = draw(st.lists(numbers, max_size=4))
    return Kept(draw(vhosts), draw(messages()), queues, draw(st.one_of(st.none(), st.just([draw(serials) for _ in queues]))))


def wrapped(serials: list[int] | None) -> list[int] | None:
    """As they are read again: from 1 to SERIALS, with their sign."""
    if not serials or not any(serials):
        return None
    return [(abs(serial) - 1) % SERIALS + 1 if serial > 0 else -((abs(serial) - 1) % SERIALS + 1) if serial else 0 for serial in serials]


plain_entries: st.SearchStrategy[Entry] = st.one_of(
    kepts(), st.builds(Settled, numbers, positions), st.builds(Stepped, numbers, positions),
    st.builds(Received, numbers, st.integers(0, 65_535)), st.builds(Released, numbers, st.integers(0, 65_535)),
    st.builds(RetainedSet, vhosts, keys, st.one_of(st.none(), messages())))
entries: st.SearchStrategy[Entry] = st.one_of(
    plain_entries, plain_entries, st.builds(Many, st.lists(plain_entries, min_size=1, max_size=4)))


@dataclass(frozen=True)
class Seen:
    """A message with everything that must survive."""

    exchange: str
    key: str
    octets: bytes
    topic: bytes
    content: bytes
    encoding: object
    assurance: int
    expires: int

    @classmethod
    def of(cls, message: Message | None) -> Seen | None:
        if message is None:
            return None
        address = message.address
        return cls(address.exchange, address.key, address.octets, address.topic, message.content, message.encoding,
                   message.assurance, message.expires)


def seen(entry: Entry, position: int) -> list[object]:
    """What an entry says, to compare."""
    if isinstance(entry, Many):
        return [seen(one, position + number) for number, one in enumerate(entry.entries)]
    if isinstance(entry, Kept):
        return ["kept", position, entry.vhost, entry.queues, wrapped(entry.serials), Seen.of(entry.message)]
    if isinstance(entry, RetainedSet):
        return ["retained", position, entry.vhost, entry.key, Seen.of(entry.message)]
    if isinstance(entry, (Settled, Stepped)):
        return [type(entry), position, entry.queue, entry.position]
    if isinstance(entry, Extended):
        return ["extended", position, entry.stream, entry.end]
    if isinstance(entry, Sequenced):
        return ["sequenced", position, entry.vhost, entry.producer, entry.sequence]
    assert isinstance(entry, (Received, Released))
    return [type(entry), position, entry.session, entry.packet_id]


def width(entry: Entry) -> int:
    return len(entry.entries) if isinstance(entry, Many) else 1


def encode(*some: Entry, first: int = 1, clock: int = 0) -> bytes:
    recorder = Recorder(CODECS, SEED)
    recorder.clock = clock
    position = first
    for entry in some:
        recorder.add(position, entry)
        position += width(entry)
    batch = recorder.take()
    octets = b"".join(batch.parts)
    assert len(octets) == batch.octets and recorder.count == recorder.octets == 0
    return octets


def decode(octets: bytes, clock: int = 0) -> list[tuple[int, Entry]]:
    decoder, reader = Decoder(CODECS), Reader(SEED, 0)
    decoder.clock = clock
    reader.load(octets, 0)
    found = []
    while reader.advance():
        found.append((int(reader.position), decoder.entry(reader.kind, reader.position, reader.octets, reader.start, reader.end)))
    assert reader.stop == END and reader.at == len(octets)
    return found


@given(st.lists(entries, min_size=1, max_size=6), st.integers(1, 1 << 62))
def test_entries_come_back_as_they_went_in_at_their_positions(some: list[Entry], first: int) -> None:
    expected, position = [], first
    for entry in some:
        expected.append((position, seen(entry, position)))
        position += width(entry)
    found = decode(encode(*some, first=first))
    assert [(position, seen(entry, position)) for position, entry in found] == expected
    for position, entry in found:
        for number, one in enumerate(entry.entries if isinstance(entry, Many) else [entry]):
            if isinstance(one, Kept):
                assert one.message.position == position + number and not one.message.retained
            if isinstance(one, RetainedSet) and one.message is not None:
                assert one.message.retained and one.message.position == 0
        assert describe(entry)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_a_reader_of_cut_octets_says_what_it_needs_and_goes_on_with_more(some: list[Entry], data: st.DataObject) -> None:
    octets = encode(*some)
    cut = data.draw(st.integers(0, len(octets)))
    reader = Reader(SEED, 0)
    reader.load(octets[:cut], 100)
    while reader.advance():
        pass
    at = int(reader.at)
    assert reader.stop == (END if at == cut else SHORT)
    if reader.stop == SHORT:
        assert cut - at < reader.needed <= len(octets) - at
    reader.load(octets[at:], 100 + at)
    while reader.advance():
        pass
    assert reader.stop == END and reader.base + reader.at == 100 + len(octets)
    assert reader.last == sum(width(entry) for entry in some)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_an_octet_that_changed_is_never_read_as_if_it_had_not(some: list[Entry], data: st.DataObject) -> None:
    octets = bytearray(encode(*some))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    expected = [seen(entry, position) for position, entry in decode(encode(*some))]
    reader, decoder, found = Reader(SEED, 0), Decoder(CODECS), []
    reader.load(bytes(octets), 0)
    while reader.advance():
        assert reader.end <= at or reader.began > at
        found.append(seen(decoder.entry(reader.kind, reader.position, reader.octets, reader.start, reader.end), reader.position))
    assert reader.stop == SHORT or reader.stop == BAD and reader.reason
    assert found == expected[:len(found)] and reader.at <= at


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(octets: bytes) -> None:
    reader = Reader(SEED, 0)
    reader.load(octets, 0)
    assert not reader.advance()
    assert reader.at == 0 and reader.stop in ((END,) if not octets else (SHORT, BAD))


@given(st.integers(0, 11), st.binary(max_size=80))
@example(MANY, bytes(4))
@example(MANY, bytes.fromhex("00000001 07 00000004 00000000"))
def test_a_payload_that_makes_no_sense_is_refused_and_nothing_else(kind: int, octets: bytes) -> None:
    try:
        entry = Decoder(CODECS).entry(kind, 1, octets, 0, len(octets))
    except (Damaged, TooNew, UnicodeDecodeError, AssertionError):
        return
    assert seen(entry, 1)


def test_the_first_record_of_a_batch_says_so_and_a_record_looks_like_one() -> None:
    octets = encode(Settled(1, 1), Settled(2, 1))
    assert [octets[9] & FIRST, octets[HEADER + 16 + 9] & FIRST] == [FIRST, 0]
    assert [match.start() for match in LIKENESS.finditer(octets)] == [8, HEADER + 16 + 8]


def test_positions_must_grow() -> None:
    reader = Reader(SEED, 5)
    reader.load(encode(Settled(1, 1), first=5), 0)
    assert not reader.advance() and reader.stop == BAD and reader.reason == "a record's position 5 comes after 5"


def test_records_of_another_log_are_not_taken_for_ours() -> None:
    reader = Reader(SEED + 1, 0)
    reader.load(encode(Settled(1, 1)), 0)
    assert not reader.advance() and reader.stop == BAD


def test_a_newer_record_and_an_unknown_encoding_are_refused_by_name() -> None:
    octets = bytearray(encode(Settled(1, 1)))
    octets[9] = 77
    octets[4:8] = crc32(octets[8:], SEED).to_bytes(4, "big")
    reader = Reader(SEED, 0)
    reader.load(bytes(octets), 0)
    with pytest.raises(TooNew, match="a record has kind 77, which this version does not know"):
        reader.advance()
    octets = bytearray(encode(Kept("/", Message(Address("", "q"), b"x", framed(1), 1), [1])))
    octets[HEADER + 4 + HOLDER + 1] = 9
    with pytest.raises(TooNew, match=r"encoding \(tag 9\)"):
        Decoder(CODECS).entry(KEPT, 1, bytes(octets), HEADER, len(octets))
    broken = bytes(octets).replace(b"\x01\x09", b"\x01\x01").replace(b"q1x", b"qyx")
    with pytest.raises(Damaged, match="the encoding of a message cannot be read: invalid literal"):
        Decoder(CODECS).entry(KEPT, 1, broken, HEADER, len(broken))


def test_what_no_record_can_hold_is_refused_and_leaves_the_batch_as_it_was() -> None:
    recorder = Recorder(Codecs(), SEED)
    recorder.add(1, Settled(1, 1))
    for entry, reason in (
            (Kept("/", Message(Address("", "q"), b"", framed(1), 1), [1]), "contents of kind Plain cannot be stored"),
            (Kept("/", Message(Address("", "k" * 65_536), b"", PLAIN, 1), [1]), "65536 does not fit into two octets"),
            (Received(1, 65_536), "65536 does not fit into two octets")):
        with pytest.raises(StoreError, match=reason):
            recorder.add(2, entry)
    with pytest.raises(AssertionError):
        recorder.add(2, Defined("/", "queue", "q", {}))
    recorder.add(2, Settled(2, 1))
    assert [position for position, _ in decode(b"".join(recorder.take().parts))] == [1, 2]


@pytest.mark.skipif(str(records.__file__).endswith(".so"), reason="compiled code takes no such bytes")
def test_a_record_is_never_larger_than_a_reader_takes() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return PAYLOAD_MAX

    recorder = Recorder(CODECS, SEED)
    with pytest.raises(StoreError, match="larger than a record may be"):
        recorder.add(1, Kept("/", Message(Address("", "q"), Long(b"x"), PLAIN, 1), [1]))
    reader = Reader(SEED, 0)
    reader.load((int(PAYLOAD_MAX) + 1).to_bytes(4, "big") + bytes(100), 0)
    assert not reader.advance() and reader.reason == "a record's length is impossible"


def test_a_dead_letter_is_written_by_the_codec_of_its_source() -> None:
    letter = Message(Address("", "q"), b"body", Amended(framed(4), {"x-death": []}, {}), 1)
    [(_, entry)] = decode(encode(Kept("/", letter, [1])))
    assert isinstance(entry, Kept)
    assert entry.message.encoding is framed(4) and entry.message.content == b"amended body"


def test_a_time_to_live_goes_on_in_another_process() -> None:
    message = Message(Address("", "q"), b"", PLAIN, 1)
    message.expires = 5_000
    octets = encode(Kept("/", message, [1]), clock=1_000_000)
    for clock, expires in ((1_000_000, 5_000), (1_004_000, 1_000), (1_005_000, 1), (2_000_000, 1)):
        [(_, entry)] = decode(octets, clock)
        assert isinstance(entry, Kept) and entry.message.expires == expires


def test_messages_of_one_address_share_it() -> None:
    found = decode(encode(*(Kept("/", Message(Address("x", "k"), b"", PLAIN, 1), [1]) for _ in range(3))))
    assert len({id(entry.message.address) for _, entry in found if isinstance(entry, Kept)}) == 1


def test_the_batch_knows_what_the_log_wants_to_know() -> None:
    recorder = Recorder(CODECS, SEED)
    kept = Kept("/", Message(Address("", "q"), b"x" * 3_000, PLAIN, 1), [1, 2])
    for position in range(5, 10):
        recorder.add(position, kept)
    recorder.add(10, Settled(1, 5))
    recorder.add(11, Many([kept, Settled(1, 6), Settled(2, 6)]))
    batch = recorder.take()
    assert (batch.first, batch.last, batch.count) == (5, 13, 7)
    assert batch.settled == [5, 6, 6] and batch.copies == 12
    assert 6 * 3_000 < batch.kept_octets < 7 * 3_000 and batch.passing == HEADER + 16 + 2 * 16
    octets = b"".join(batch.parts)
    reader = Reader(SEED, 0)
    for position, offset in batch.marks:
        reader.load(octets[offset:], offset)
        reader.last = 0
        assert reader.advance() and reader.position == position
    assert batch.marks[0] == (5, 0) and len(batch.marks) == 3


def test_the_entries_of_a_many_must_fill_it() -> None:
    octets = encode(Many([Settled(1, 1), Settled(2, 1)]))
    payload = octets[HEADER:]
    assert [part.position for part in parts(payload, 7, 0, len(payload))] == [7, 8]
    for broken in (payload[:-1], payload + b"x", (3).to_bytes(4, "big") + payload[4:], (1).to_bytes(4, "big") + payload[4:]):
        with pytest.raises(Damaged, match="do not fill it"):
            Decoder(CODECS).entry(MANY, 7, broken, 0, len(broken))


def test_a_group_without_an_entry_is_damaged() -> None:
    empty, short, inner = bytes(4), bytes(3), bytes.fromhex("00000001 02 00000010") + bytes(16)
    assert isinstance(Decoder(CODECS).entry(MANY, 7, inner, 0, len(inner)), Many)
    for payload in (empty, short):
        with pytest.raises(Damaged, match="the group record at position 7 holds no entry"):
            Decoder(CODECS).entry(MANY, 7, payload, 0, len(payload))
    for kind in (0, MANY, CLOSED, SEQUENCED + 1):
        payload = (1).to_bytes(4, "big") + bytes([kind]) + len(inner).to_bytes(4, "big") + inner
        with pytest.raises(Damaged, match=f"holds a record of kind {kind}, which is no entry"):
            Decoder(CODECS).entry(MANY, 7, payload, 0, len(payload))


@pytest.mark.parametrize("payload", [b"", bytes(3), bytes(4), b"\0\0\0\2" + bytes(9), b"\xff" * 4 + bytes(5)])
def test_a_group_that_cannot_hold_its_count_leaves_the_positions_behind_it_as_they_are(payload: bytes) -> None:
    tail = bytes([1, MANY]) + bytes(6) + (5).to_bytes(8, "big") + payload
    reader = Reader(SEED, 4)
    reader.load(len(payload).to_bytes(4, "big") + crc32(tail, SEED).to_bytes(4, "big") + tail, 0)
    assert not reader.advance() and reader.stop == BAD and reader.reason == "a group record's entry count is impossible"
    assert reader.at == 0 and reader.last == 4
