"""Tests that a stream has the right rows after its broker ended at any moment."""

from __future__ import annotations

from pathlib import Path

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.backup import back_up
from broker.store.opening import CATALOG
from broker.stream.arrow import SCHEMA_SIZE
from broker.stream.template import BUFFERS, LENGTH
from tests.clients import Amqp, World
from tests.store.homes import Home, restore
from tests.streams.tables import rows_in, rows_of, stream
from tests.streams.test_stream_queues import consume, declare, offsets, reason


def bodies(home: Home) -> list[bytes]:
    return [row["body"] for row in rows_of(stream(home.broker, "s"))]


def fill(client: Amqp, first: int, count: int, size: int = 0) -> None:
    for number in range(first, first + count):
        client.publish("", "s", b"%d" % number + bytes(size))


def segments(home: Home) -> list[Path]:
    return sorted((home.directory / "streams" / "%2F" / "s").glob("*.arrow"))


def test_durable_rows_survive_a_restart_and_a_new_epoch_continues(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    declare(home.amqp())
    fill(home.amqp(), 0, 3)
    home.crash()
    home = Home(tmp_path / "d")
    assert bodies(home) == [b"0", b"1", b"2"] and not home.broker.streams.findings
    fill(home.amqp(), 3, 2)
    assert bodies(home) == [b"0", b"1", b"2", b"3", b"4"]
    assert [path.name for path in segments(home)] == [
        "0000000001-00000000000000000000.arrow",
        "0000000002-00000000000000000003.arrow",
    ]
    reader = home.amqp()
    assert offsets(consume(reader, 1)) == [1, 2, 3, 4]
    home.fates()
    home.crash()
    assert bodies(Home(tmp_path / "d")) == [b"0", b"1", b"2", b"3", b"4"]


def test_rows_that_the_log_does_not_know_are_cut(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    declare(home.amqp())
    fill(home.amqp(), 0, 2)
    home.slow_disk = True
    home.amqp().publish("", "s", b"never confirmed")
    batch = home.store.take()
    batch.write_streams()
    home.crash()
    home = Home(tmp_path / "d")
    assert bodies(home) == [b"0", b"1"]
    assert [str(finding).partition(":")[0] for finding in home.broker.streams.findings] == ["cut"]
    fill(home.amqp(), 2, 1)
    assert [row["offset"] for row in rows_of(stream(home.broker, "s"))] == [0, 1, 2]


def test_a_batch_of_which_the_log_knows_a_part_is_there_in_part(tmp_path: Path) -> None:
    """A batch has a transaction with rows of a stream, and a later row.

    A crash cuts the log within the batch, after the record of the transaction. A start must keep
    the rows of the transaction, and cut the later row.
    """
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client)
    client.queue("q", durable=True)
    client.send(spec.Tx.Select())
    home.slow_disk = True
    for number in range(3):
        client.publish("", "s", b"%d" % number)
    client.publish("", "q", b"kept", delivery_mode=2)
    client.send(spec.Tx.Commit())
    home.amqp().publish("", "s", b"later")
    batch = home.store.take()
    catalog = {path: path.read_bytes() for path in (tmp_path / "d").glob(f"{CATALOG}*")}
    batch.write()
    home.crash()
    restore(catalog)
    [segment] = sorted((tmp_path / "d" / "log").glob("0*.log"))[-1:]
    data = segment.read_bytes()
    segment.write_bytes(data[:-40])  # Cut off the last record, which has the end of the stream.
    home = Home(tmp_path / "d")
    assert bodies(home) == [b"0", b"1", b"2"] and home.queue("q").depth == 1
    fill(home.amqp(), 3, 2)
    assert [(row["offset"], row["body"]) for row in rows_of(stream(home.broker, "s"))] == [
        (n, b"%d" % n) for n in range(5)
    ]


@pytest.mark.parametrize("lost", ["part", "all"])
def test_a_torn_end_of_a_segment_is_cut(tmp_path: Path, lost: str) -> None:
    home = Home(tmp_path / "d")
    declare(home.amqp())
    fill(home.amqp(), 0, 2)
    home.slow_disk = True
    home.amqp().publish("", "s", b"torn")
    home.store.take().write_streams()
    home.crash()
    [path] = segments(home)
    data = path.read_bytes()
    path.write_bytes(data[:-9] if lost == "part" else data[:-900])
    home = Home(tmp_path / "d")
    assert bodies(home) == [b"0", b"1"]


def test_damaged_segment_is_quarantined_and_reported_and_later_ones_are_read(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=8_192)
    fill(client, 0, 9, 3_000)
    home.crash()
    [first, second, *_] = segments(home)
    data = bytearray(second.read_bytes())
    data[SCHEMA_SIZE + 2_500] ^= 1
    second.write_bytes(data)
    (tmp_path / f"d/streams/%2F/s/{second.name}.index").unlink()
    home = Home(tmp_path / "d")
    [finding] = home.broker.streams.findings
    assert finding.kind == "quarantined" and finding.file == f"streams/%2F/s/{second.name}"
    assert Path(finding.copy).read_bytes() == bytes(data)
    queue = stream(home.broker, "s")
    lost, goes_on = int(queue.local.segments[0].end), int(queue.local.segments[1].base)
    assert lost < goes_on
    reader = home.amqp()
    assert offsets(consume(reader, goes_on)) == list(range(goes_on, 9))
    code, text = reason(consume(home.amqp(), lost))
    assert (
        code == 406
        and f"offset {lost} of stream 's' in vhost '/' is lost" in text
        and f"next available offset is {goes_on}" in text
    )
    code, text = reason(consume(home.amqp(), 0))
    assert code == 406 and "is lost" in text, "a reader that reaches the gap gets an error"
    fill(home.amqp(), 9, 1)
    assert queue.local.end == 10
    assert first.exists()


def test_damage_that_only_a_reader_meets_is_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=4_096)
    fill(client, 0, 3, 3_000)
    home.crash()
    first = segments(home)[0]
    data = bytearray(first.read_bytes())
    data[SCHEMA_SIZE + 2_500] ^= 1
    first.write_bytes(data)
    home = Home(tmp_path / "d")
    code, text = reason(consume(home.amqp(), 0))
    assert code == 406 and "is damaged at" in text
    assert offsets(consume(home.amqp(), 1)) == [1, 2]


@pytest.mark.parametrize("harm", ["cut", "rows", "buffers"])
def test_a_full_segment_that_lost_its_end_or_makes_no_sense_is_an_error(
    tmp_path: Path, harm: str
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=4_096)
    fill(client, 0, 3, 3_000)
    home.crash()
    data = bytearray(segments(home)[0].read_bytes())
    if harm == "cut":
        del data[int(SCHEMA_SIZE) :]
    else:
        at = int(SCHEMA_SIZE + (LENGTH if harm == "rows" else BUFFERS + 16))
        data[at : at + 8] = bytes(8) if harm == "rows" else b"\x08" + bytes(7)
    segments(home)[0].write_bytes(data)
    home = Home(tmp_path / "d")
    if harm == "cut":
        assert [finding.kind for finding in home.broker.streams.findings] == ["wrong", "missing"]
    else:
        code, text = reason(consume(home.amqp(), 0))
        assert code == 406 and "is damaged at" in text
    assert offsets(consume(home.amqp(), 1)) == [1, 2]


def test_an_end_that_is_missing_is_reported_and_its_offsets_are_not_used_again(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=4_096)
    fill(client, 0, 3, 3_000)
    home.crash()
    segments(home)[-1].unlink()
    home = Home(tmp_path / "d")
    assert [finding.kind for finding in home.broker.streams.findings] == ["missing"]
    fill(home.amqp(), 3, 1)
    assert [row["offset"] for row in rows_of(stream(home.broker, "s"))] == [0, 1, 3]


def test_the_checkpoint_of_a_log_knows_how_far_streams_are(tmp_path: Path) -> None:
    from broker.store.checkpoint import Checkpointing

    home = Home(tmp_path / "d")
    declare(home.amqp())
    fill(home.amqp(), 0, 3)
    home.crash()
    home = Home(tmp_path / "d")
    home.amqp().queue("q", durable=True)
    home.amqp().publish("", "q", b"x", delivery_mode=2)
    log = home.opened.store.log
    Checkpointing(log, log.sealed(), set(home.opened.store.holder_numbers)).run()
    home.crash()
    home = Home(tmp_path / "d")
    assert bodies(home) == [b"0", b"1", b"2"] and not home.broker.streams.findings


def test_a_stream_that_was_deleted_leaves_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client)
    fill(client, 0, 3)
    client.send(spec.Queue.Delete(queue="s"))
    home.turn()
    assert segments(home) == []
    declare(client)
    fill(client, 7, 1)
    home.crash()
    assert bodies(Home(tmp_path / "d")) == [b"7"]


def test_a_stream_is_deleted_while_one_batch_is_written_and_another_gathered(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client)
    fill(client, 0, 2)
    home.slow_disk = True
    fill(client, 2, 2)
    first = home.store.take()
    fill(client, 4, 2)
    client.send(spec.Queue.Delete(queue="s"))
    first.write()
    home.store.written(first)
    home.store.sync()
    home.slow_disk = False
    home.turn()
    assert list((tmp_path / "d" / "streams").iterdir()) == []
    declare(home.amqp())
    fill(home.amqp(), 7, 1)
    home.crash()
    assert bodies(Home(tmp_path / "d")) == [b"7"]


def test_segments_of_a_stream_that_had_the_name_before_go(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client)
    fill(client, 0, 3)
    [old] = segments(home)
    data = old.read_bytes()
    client.send(spec.Queue.Delete(queue="s"))
    home.turn()
    declare(client)
    fill(client, 7, 1)
    home.crash()
    (old.parent / "0000000009-00000000000000000000.arrow").write_bytes(data)
    assert bodies(Home(tmp_path / "d")) == [b"7"]


def test_a_full_segment_is_whole_arrow_with_an_index_beside_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=16_384)
    fill(client, 0, 6, 3_000)
    full, *_ = segments(home)
    assert len(rows_in(full.read_bytes())) == 2
    assert full.with_name(f"{full.name}.index").read_bytes().startswith(b"TSIX")


def test_names_are_harmless_directories(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    for name in ("..", "a/b", "é" * 100, "x" * 250):
        declare(client, name)
        client.publish("", name, b"1")
    assert len(list((tmp_path / "d/streams/%2F").iterdir())) == 4
    home.crash()
    home = Home(tmp_path / "d")
    assert all(stream(home.broker, name).depth == 1 for name in ("..", "a/b", "é" * 100, "x" * 250))


def test_a_backup_of_a_running_broker_has_its_streams(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    declare(client, x_stream_max_segment_size_bytes=8_192)
    fill(client, 0, 5, 3_000)
    back_up(str(tmp_path / "d"), str(tmp_path / "copy"), lambda *_: None)
    fill(client, 5, 1)
    copy = Home(tmp_path / "copy")
    assert [body.rstrip(b"\0") for body in bodies(copy)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ] and not copy.broker.streams.findings
    copy.crash()
    home.crash()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6_000), min_size=1, max_size=25),
    kept=st.integers(5_000, 40_000),
    data=st.data(),
)
def test_a_reader_gets_every_row_or_an_error(
    sizes: list[int], kept: int, data: st.DataObject
) -> None:
    """A reader gets consecutive rows or an error, whichever rows retention removes meanwhile."""
    world = World()
    client, reader = world.amqp(), world.amqp()
    declare(client, x_stream_max_segment_size_bytes=8_192, x_max_length_bytes=kept)
    queue = stream(world.broker, "s")
    frames = consume(reader, "first", prefetch=1)
    received: list[int] = []
    for number, size in enumerate(sizes):
        client.publish("", "s", b"%d " % number + bytes(size))
        for _ in range(data.draw(st.integers(0, 3))):
            frames += reader.read()
            received += offsets(frames)
            frames = reader.send(spec.Basic.Ack(len(received))) if offsets(frames) else []
            if reader.connection.channels.open.get(1) is None:
                assert "is gone" in reason(frames)[1] and len(received) < queue.local.first_offset
                return
    assert received == list(range(len(received)))
    world.fates()
