"""Measures what it costs to pass messages from one process to another over a Unix socket.

    python benchmarks/hop.py [--seconds S] [--bytes N]     (S: 2, N: 100)

The sender writes batches of 1 to 1,000 messages, as a worker would at the end of a turn of its
event loop; the receiver only counts their bytes, and answers each batch with one byte. Both
processes run uvloop, as the broker does. The figure is the CPU time of both processes per message,
answers included: the additional cost if a message enters one worker process and leaves another
(decision 0026). The other process would also have to parse the message again; the figure does not
include this cost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import time
from typing import Final, cast

import uvloop

BATCHES: Final = (1, 10, 100, 1000)


class _Receiver(asyncio.Protocol):
    """Answers each complete batch with one byte; stops the event loop when the connection ends."""

    def __init__(self, batch: int) -> None:
        self._batch = self._missing = batch
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no instances of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._missing -= len(data)
        if self._missing <= 0:
            self._missing += self._batch
            self._transport.write(b"a")

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().stop()


class _Sender(asyncio.Protocol):
    """Writes a batch when the previous batch is answered, for `seconds`; counts the batches."""

    def __init__(self, batch: bytes, seconds: float) -> None:
        self._batch = batch
        self._end = time.monotonic() + seconds
        self._transport: asyncio.Transport | None = None
        self.sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._batch)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self.sent += 1
        if time.monotonic() < self._end:
            self._transport.write(self._batch)
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().stop()


def run(connection: socket.socket, protocol: asyncio.Protocol) -> None:
    """Serve one connection until it ends."""
    loop = uvloop.new_event_loop()
    loop.run_until_complete(loop.create_connection(lambda: protocol, sock=connection))
    loop.run_forever()
    loop.close()


def measure(count: int, size: int, seconds: float) -> float:
    """Return the CPU time of both processes per message in us, with batches of `count` messages.

    A message has `size` bytes. The measurement takes `seconds`.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        run(theirs, _Receiver(count * size))
        os._exit(0)
    theirs.close()
    sender = _Sender(bytes(count * size), seconds)
    before = time.process_time()
    run(ours, sender)
    own = time.process_time() - before
    _, status, used = os.wait4(child, 0)
    assert status == 0 and sender.sent
    return (own + used.ru_utime + used.ru_stime) / (sender.sent * count) * 1e6


def main() -> None:
    """Print a row of the table for each size of a batch."""
    parser = argparse.ArgumentParser(description="Measure the cost of a hop between processes.")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="seconds to measure each batch size [2]"
    )
    parser.add_argument("--bytes", type=int, default=100, help="size of a message in bytes [100]")
    given = parser.parse_args()
    print(f"| messages of {given.bytes} bytes in a batch | us a message, both processes |")
    print("|---:|---:|")
    for count in BATCHES:
        print(f"| {count:,} | {measure(count, given.bytes, given.seconds):.2f} |", flush=True)


if __name__ == "__main__":
    main()
