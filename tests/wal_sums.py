"""Computes checksums of SQLite's write-ahead log with numpy, for tests of the uncompiled broker.

A broker checks the whole log at each start (broker/store/wal.py). The broker's own code takes
0.6 µs for a page if it is compiled, and 150 µs if not: half of the CPU time of tests that start
many brokers on copies of a directory. This module is 30 times as fast as the uncompiled code.
tests/store/test_wal_sums.py compares the checksums of this module with those of the product.

A checksum of SQLite has two parts. They are terms of one sequence, where each term is the sum of
the two terms before it and a word: t[n] = t[n-1] + t[n-2] + w[n]. So the word w[k] is in t[n] as
often as the Fibonacci number F(n-k+1), where F(1) = F(2) = 1. All numbers are modulo 2**32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from broker.store import wal

#: The method of the product.
product_add = wal.WalChecksum.add


def install() -> None:
    """Replace WalChecksum.add by the function `add`, if broker.store.wal is not compiled."""
    if wal.__file__.endswith(".py"):
        wal.WalChecksum.add = add  # type: ignore[method-assign]


def add(self: wal.WalChecksum, data: bytes) -> None:
    """Update the checksum `self` with `data`, as WalChecksum.add does.

    The size of `data` is a multiple of 8 bytes.
    """
    # Most test runs check no log.
    import numpy

    words = numpy.frombuffer(data, "<u4" if self._little else ">u4").astype(numpy.uint32)
    numbers = _fibonacci(len(words) + 1)  # F(n+1), ..., F(0)
    first, second = self.first_sum, self.second_sum
    for name, at in (("first_sum", 1), ("second_sum", 0)):
        total = int((words * numbers[at + 1 : at + 1 + len(words)]).sum(dtype=numpy.uint32))
        total += int(numbers[at]) * second + int(numbers[at + 1]) * first
        setattr(self, name, total & 0xFFFFFFFF)


@cache
def _fibonacci(last: int) -> Any:
    """Return the Fibonacci numbers from F(last) down to F(0), modulo 2**32."""
    import numpy

    numbers = [0, 1]
    while len(numbers) <= last:
        numbers.append((numbers[-1] + numbers[-2]) & 0xFFFFFFFF)
    return numpy.array(numbers[::-1], numpy.uint32)
