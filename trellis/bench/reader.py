"""What hears one connection: octets go in, are checked, and answers come out. No sockets here."""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64

#: Octets that are asked of a socket at once.
CHUNK = 262_144


class BenchReader:
    """`where` names the connection in errors, `out` holds what it has to answer."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.out = BytesWriter()
        #: The beginning of a packet or frame whose end has not come.
        self.rest = b""

    def heard(self, data: bytes, now: i64) -> None:
        """Octets came, at most CHUNK, at this time in ns. Raises WrongAnswer, BenchError."""
        raise NotImplementedError

    def count(self) -> i64:
        """How many messages have come, or have been acknowledged."""
        raise NotImplementedError

    def steps(self) -> i64:
        """A number that grows with whatever is heard."""
        raise NotImplementedError

    def open(self) -> str:
        """What the broker still owes beside messages, such as "12 PUBRELs"; empty when nothing."""
        return f"the rest of {len(self.rest)} octets" if self.rest else ""
