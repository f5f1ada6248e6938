"""One socket: what it still has to send, and the reader that hears it. Hot path.

A publisher's messages are encoded once, as many as its numbers, and sent round and round out of one
piece of memory:

    lap      | packet 0 | packet 1 | ... | packet ring-1 |        all of one size
                              ^ at                    ^ target    counted in octets over all laps
"""

from __future__ import annotations

import socket

from mypy_extensions import i64

from trellis.bench.check import PublishedMessages
from trellis.bench.errors import BenchError
from trellis.bench.reader import CHUNK, BenchReader


class PublishFeed:
    """A publisher's encoded messages, and how far they have been sent.

    `lap` is all of them, `packet` the size of one.
    """

    def __init__(self, lap: bytes, packet: i64, published: PublishedMessages) -> None:
        self.packets = memoryview(lap)
        self.lap: i64 = len(lap)
        self.packet = packet
        self.published = published
        self.at: i64 = 0
        self.target: i64 = 0

    def start(self, count: i64, now: i64) -> None:
        """The next `count` messages are to leave; their time is `now`."""
        self.target += count * self.packet
        self.published.send(count, now)


class BenchConnection:
    """A connection that is set up.

    Nothing here waits: `blocked` says that the socket takes no more for now.
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
        self.octets_in: i64 = 0
        self.octets_out: i64 = 0
        self._left = memoryview(b"")

    def hear(self, now: i64) -> None:
        """Read once, check it, and answer. Raises WrongAnswer, BenchError."""
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
        self.octets_in += len(data)
        self.reader.heard(data, now)
        if len(self.reader.out) > 0 and not self.blocked:
            self.push()

    def push(self) -> None:
        """Send what there is: the rest of answers, then messages, then answers, which may not stand
        inside a message.
        """
        while len(self._left) > 0:
            sent = self._send(self._left)
            if self.blocked:
                return
            self._left = self._left[sent:]
        feed = self.feed
        if feed is not None:
            while feed.at < feed.target:
                start: i64 = feed.at % feed.lap
                stop: i64 = min(start + feed.target - feed.at, feed.lap)
                feed.at += self._send(feed.packets[start:stop])
                if self.blocked:
                    return
        out = self.reader.out
        if len(out) > 0:
            self._left = memoryview(out.getvalue())
            out.truncate(0)
            self.push()

    def _send(self, octets: memoryview) -> int:
        try:
            sent = self.sock.send(octets)
        except BlockingIOError:
            self.blocked = True
            return 0
        except OSError:
            # It is gone; what it had to say about that can still be read, and says more.
            self.blocked = True
            return 0
        self.sends += 1
        self.octets_out += sent
        return sent

    def unsent(self) -> i64:
        """Octets that the socket has not taken."""
        waiting: i64 = len(self._left) + len(self.reader.out)
        feed = self.feed
        return waiting if feed is None else waiting + feed.target - feed.at
