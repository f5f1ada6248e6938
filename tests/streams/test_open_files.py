"""Open files of streams: their number is bounded for any number of streams, and no row is lost."""

from __future__ import annotations

import pamqp.commands as spec
from hypothesis import given
from hypothesis import strategies as st

from broker.stream.open_files import FileUser, OpenFiles
from tests.clients import World
from tests.streams.test_stream_queues import consume, declare


class User(FileUser):
    def __init__(self) -> None:
        self.open = False
        self.busy = False

    def close_idle(self) -> bool:
        if not self.busy:
            self.open = False
        return not self.busy


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())), st.integers(1, 5))
def test_the_files_used_last_stay_open(steps: list[tuple[int, bool]], most: int) -> None:
    files = OpenFiles()
    files.most = most
    users = [User() for _ in range(10)]
    order: list[User] = []
    for number, busy in steps:
        user = users[number]
        files.use(user)
        user.open, user.busy = True, busy
        order = [other for other in order if other is not user] + [user]
        opened = [other for other in users if other.open]
        busy_ones = sum(other.busy for other in opened)
        assert len(opened) <= most + busy_ones
        if not any(other.busy for other in users):
            assert len(opened) <= most
            assert all(other.open for other in order[-most:])
    for user in users:
        files.remove(user)
    assert len(files) == 0


class RemovedMeanwhile(User):
    """A user of an open file. `OpenFiles` removes the user while it closes the user's file.

    In a real broker, another thread may remove the user at this moment.
    """

    def __init__(self, files: OpenFiles) -> None:
        super().__init__()
        self._files = files

    def close_idle(self) -> bool:
        self._files.remove(self)
        return super().close_idle()


def test_a_stream_may_be_deleted_while_its_file_is_closed() -> None:
    """Check that `OpenFiles` keeps its limit if streams are deleted while it closes their files.

    To make room, `OpenFiles` closes the file of a stream that was not used for long. During the
    close, another thread may delete this stream, because a close releases the interpreter lock.
    """
    files = OpenFiles()
    files.most = 2
    users = [RemovedMeanwhile(files), User(), User(), RemovedMeanwhile(files), User()]
    for user in users:
        user.open = True
        files.use(user)
    assert [user.open for user in users] == [False, False, False, True, True]
    assert len(files) == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40), st.integers(1, 3))
def test_rows_of_streams_whose_files_are_closed_meanwhile_are_all_there(
    steps: list[tuple[int, bool]], most: int
) -> None:
    world = World()
    streams = world.broker.streams
    streams.writing.most = streams.reading.most = most
    client = world.amqp()
    published: list[list[bytes]] = [[] for _ in range(5)]
    for number in range(5):
        declare(client, f"s{number}", x_stream_max_segment_size_bytes=30_000)
    for number, read in steps:
        body = b"%d" % len(published[number]) + bytes(9_000)
        client.publish("", f"s{number}", body)
        published[number].append(body)
        assert len(streams.writing) <= most
        if read:
            reader = world.amqp()
            delivered = reader.bodies(consume(reader, name=f"s{number}"))
            assert delivered == published[number]
            assert len(streams.reading) <= most
    for number in range(5):
        reader = world.amqp()
        assert reader.bodies(consume(reader, name=f"s{number}")) == published[number]
        client.send(spec.Queue.Delete(queue=f"s{number}"))
    world.fates()
    assert len(streams.writing) == 0
