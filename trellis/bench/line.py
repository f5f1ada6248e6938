"""One connection of the load generator: its socket, its reader and its unsent data. Hot path.

The messages of a publisher are encoded once, into one buffer, the lap. The lap is sent again and
again:

    lap      | packet 0 | packet 1 | ... | packet ring-1 |        all of one size
                              ^ at                    ^ target    bytes, counted over all laps
"""

from __future__ import annotations

import socket

from mypy_extensions import i64

from trellis.bench.check import PublishedMessages
from trellis.bench.errors import BenchError
from trellis.bench.reader import CHUNK, BenchReader


class PublishFeed:
    """The encoded messages of a publisher, in one buffer that is sent again and again.

    Each message in the buffer has `packet` bytes, and `lap` is the size of the buffer in bytes.
    `at` is the number of bytes that were sent since the start, and `target` the number of bytes
    that may be sent. Both numbers grow without end, although the same buffer is sent again.
    """

    def __init__(self, lap: bytes, packet: i64, published: PublishedMessages) -> None:
        self.packets = memoryview(lap)
        self.lap: i64 = len(lap)
        self.packet = packet
        self.published = published
        self.at: i64 = 0
        self.target: i64 = 0

    def start(self, count: i64, now: i64) -> None:
        """Permit the sending of the next `count` messages; record `now` (ns) as their send time."""
        self.target += count * self.packet
        self.published.send(count, now)


class BenchConnection:
    """A connection that is logged in, with a non-blocking socket.

    Publishers have a `feed`, subscribers have none. `blocked` is true while the socket accepts no
    more data.
    """

    def __init__(
        self, sock: socket.socket, reader: BenchReader, feed: PublishFeed | None = None
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.reader = reader
        self.feed = feed
        self.blocked = False
        self.sends: i64 = 0
        self.receives: i64 = 0
        self.bytes_in: i64 = 0
        self.bytes_out: i64 = 0
        self._left = memoryview(b"")

    def read(self, now: i64) -> None:
        """Receive up to CHUNK bytes, check them, and send the reader's answers.

        Raises WrongAnswer, or BenchError if the broker closed the connection.
        """
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise BenchError(
                f"{self.reader.where}: the broker closed the connection ({error.strerror or error})"
            ) from None
        if not data:
            raise BenchError(f"{self.reader.where}: the broker closed the connection")
        self.receives += 1
        self.bytes_in += len(data)
        self.reader.receive(data, now)
        if len(self.reader.out) > 0 and not self.blocked:
            self.send()

    def send(self) -> None:
        """Send until all data is sent or the socket is full.

        The order is: the unsent part of an answer, then messages, then new answers. So no answer is
        sent inside a message.
        """
        while len(self._left) > 0:
            sent = self._send_data(self._left)
            if self.blocked:
                return
            self._left = self._left[sent:]
        feed = self.feed
        if feed is not None:
            while feed.at < feed.target:
                start: i64 = feed.at % feed.lap
                stop: i64 = min(start + feed.target - feed.at, feed.lap)
                feed.at += self._send_data(feed.packets[start:stop])
                if self.blocked:
                    return
        out = self.reader.out
        if len(out) > 0:
            self._left = memoryview(out.getvalue())
            out.truncate(0)
            self.send()

    def _send_data(self, data: memoryview) -> int:
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            self.blocked = True
            return 0
        except OSError:
            # The connection is closed. The next read raises an error with the reason.
            self.blocked = True
            return 0
        self.sends += 1
        self.bytes_out += sent
        return sent

    def unsent(self) -> i64:
        """Return the number of bytes that the socket has not accepted yet."""
        waiting: i64 = len(self._left) + len(self.reader.out)
        feed = self.feed
        return waiting if feed is None else waiting + feed.target - feed.at
