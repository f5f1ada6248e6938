"""Consecutive acknowledgements become one record of the log: a group."""

from __future__ import annotations

from broker.store.codecs import Codecs
from broker.store.entries import (
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PubrecReceived,
    StoreEntry,
)
from broker.store.layout import BATCH_START, GROUP, HEADER_SIZE, PUBREC_RECEIVED, SETTLED
from broker.store.member_run import RUN_MAX
from broker.store.reading import COUNT_SIZE, END, Decoder, RecordReader, group_members
from broker.store.records import Recorder
from tests.store.logs import message

SEED = 77
#: Size of a settlement or PUBREC as a member of a group, in bytes.
MEMBER_SIZE = 5 + 16


def records(data: bytes) -> list[tuple[int, int, list[tuple[int, StoreEntry]]]]:
    """Return the kind, the size and the entries (with their positions) of each record."""
    reader, decoder = RecordReader(SEED, 0), Decoder(Codecs())
    reader.load(data, 0)
    read: list[tuple[int, int, list[tuple[int, StoreEntry]]]] = []
    while reader.advance():
        assert reader.first_of_batch == (not read)
        members = (
            [
                (int(one.position), decoder.entry(one.kind, one.position, data, one.start, one.end))
                for one in group_members(data, reader.position, reader.start, reader.end)
            ]
            if reader.kind == GROUP
            else [
                (
                    int(reader.position),
                    decoder.entry(reader.kind, reader.position, data, reader.start, reader.end),
                )
            ]
        )
        assert reader.last == members[-1][0]
        read.append((int(reader.kind), int(reader.end - reader.record_start), members))
    assert reader.stop == END
    return read


def values(entry: StoreEntry) -> tuple[type[StoreEntry], int, int]:
    assert isinstance(entry, (MessageSettled, PubrecReceived))
    return type(entry), int(entry.queue), int(entry.position)


def test_acknowledgements_at_consecutive_positions_are_one_group() -> None:
    recorder = Recorder(Codecs(), SEED)
    recorder.add_pubrec(10, 3, 7)
    recorder.add_settled(11, 3, 8)
    recorder.add_settled(12, 4, 9)
    assert recorder.count == 1 and recorder.size == 3 * MEMBER_SIZE
    batch = recorder.take()
    [(kind, size, members)] = records(b"".join(batch.parts))
    assert kind == GROUP and size == batch.size == HEADER_SIZE + COUNT_SIZE + 3 * MEMBER_SIZE
    assert [(position, *values(entry)) for position, entry in members] == [
        (10, PubrecReceived, 3, 7),
        (11, MessageSettled, 3, 8),
        (12, MessageSettled, 4, 9),
    ]
    assert (batch.first, batch.last, batch.count) == (10, 12, 1)
    assert batch.transient_size == 3 * MEMBER_SIZE
    assert recorder.count == recorder.size == 0


def test_a_single_acknowledgement_is_a_plain_record() -> None:
    recorder = Recorder(Codecs(), SEED)
    recorder.add_settled(10, 3, 7)
    recorder.add(11, DeliveryMark(3, 0, 9))
    recorder.add_pubrec(12, 3, 8)
    batch = recorder.take()
    read = records(b"".join(batch.parts))
    assert [kind for kind, _, _ in read] == [SETTLED, 11, PUBREC_RECEIVED]
    assert read[0][1] == HEADER_SIZE + 16
    assert (batch.first, batch.last, batch.count) == (10, 12, 3)


def test_other_entries_and_gaps_end_a_group() -> None:
    recorder = Recorder(Codecs(), SEED)
    stored = MessageStored("/", message(b"1"), [3])
    recorder.add_settled(1, 3, 100)
    recorder.add_settled(2, 3, 101)
    recorder.add(3, stored)
    recorder.add_settled(4, 3, 102)
    recorder.add_settled(5, 3, 103)
    recorder.add_message(6, "/", stored.message, stored.queues, None)
    recorder.add_settled(7, 3, 104)
    recorder.add_settled(8, 3, 105)
    recorder.add_settled(10, 3, 106)  # A definition has taken the position 9.
    recorder.add_settled(11, 3, 107)
    recorder.add(12, EntryGroup([stored, MessageSettled(3, 108)]))
    recorder.add_settled(14, 3, 109)
    batch = recorder.take()
    read = records(b"".join(batch.parts))
    assert [[position for position, _ in members] for _, _, members in read] == [
        [1, 2],
        [3],
        [4, 5],
        [6],
        [7, 8],
        [10, 11],
        [12, 13],
        [14],
    ]
    assert (batch.first, batch.last, batch.count) == (1, 14, 8)


def test_a_long_run_is_divided_into_records() -> None:
    recorder = Recorder(Codecs(), SEED)
    for position in range(1, 2 * RUN_MAX + 2):
        recorder.add_settled(position, 3, 1_000 + position)
    batch = recorder.take()
    read = records(b"".join(batch.parts))
    assert [len(members) for _, _, members in read] == [RUN_MAX, RUN_MAX, 1]
    assert [position for _, _, members in read for position, _ in members] == list(
        range(1, 2 * RUN_MAX + 2)
    )
    assert BATCH_START & batch.parts[0][9] and batch.last == 2 * RUN_MAX + 1
