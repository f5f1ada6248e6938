"""The base class of readers, which check the data of one connection and write answers to it.

A reader has no socket: the connection passes the data in and sends the answers.
"""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64

#: Largest number of bytes that are read from a socket at once.
CHUNK = 262_144


class BenchReader:
    """Base class of readers. `where` names the connection in errors; `out` holds the answers that
    the connection must send.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.out = BytesWriter()
        #: The received bytes of a packet or frame that is not complete yet.
        self.rest = b""

    def receive(self, data: bytes, now: i64) -> None:
        """Check up to CHUNK bytes received at `now` in ns. Raises WrongAnswer, BenchError."""
        raise NotImplementedError

    def count(self) -> i64:
        """Return the number of received messages, or of acknowledgements to a publisher."""
        raise NotImplementedError

    def steps(self) -> i64:
        """Return a number that grows with every received packet or frame, to detect progress."""
        raise NotImplementedError

    def pending(self) -> str:
        """Return a phrase for the awaited input other than new messages; "" if there is none.

        Examples: "12 PUBRELs", "the rest of 5 bytes".
        """
        return f"the rest of {len(self.rest)} bytes" if self.rest else ""
