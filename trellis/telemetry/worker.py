"""The worker of the telemetry: a process that makes spans of steps, and sends them."""

from __future__ import annotations

import os
import socket
import threading
from typing import Final

from trellis.telemetry import contract
from trellis.telemetry.assembly import FinishedSpan, SpanAssembler
from trellis.telemetry.exporting import CollectorClient
from trellis.telemetry.span_queue import SpanQueue

#: The priority of the process is lowered by this number, so that the broker runs first.
NICE: Final = 5
#: Seconds in which the last spans are sent after the broker has closed its end.
END_SECONDS: Final = 0.5


class TelemetryWorker:
    """The work of the telemetry process: receives steps over a socket, makes spans of them, and
    sends the spans to the collector.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        opened = contract.to_worker.decode(self._lines.readline())
        assert isinstance(opened, contract.OpenExport)
        self._assembler = SpanAssembler()
        self._queue: SpanQueue[FinishedSpan] = SpanQueue(
            CollectorClient(opened).export, self._report
        )
        self._sending = threading.Lock()

    def run(self) -> None:
        """Serve the broker until the broker closes the connection, and send the last spans."""
        self._queue.start()
        self._send(contract.ExporterReady())
        for text in self._lines:
            message = contract.to_worker.decode(text)
            if isinstance(message, contract.Steps):
                self._queue.add(self._assembler.add(message.steps))
                self._report()
        self._queue.end(END_SECONDS)

    def _report(self) -> None:
        """Report to the broker the numbers of spans that were sent, dropped, and that wait.

        Two threads report. The lock ensures that older numbers are not sent after newer ones.
        """
        with self._sending:
            counts = self._queue.take_counts()
            self._send(
                contract.SpanProgress(
                    counts.exported,
                    counts.dropped_full,
                    counts.dropped_refused,
                    counts.failures,
                    self._queue.waiting,
                    self._queue.reason,
                    self._assembler.remembered,
                    self._assembler.unknown,
                )
            )

    def _send(self, message: contract.FromWorker) -> None:
        try:
            self._connection.sendall(contract.line(message))
        except OSError:
            pass  # The broker has ended, and reads no more.


def main(descriptor: int) -> None:
    """Run the worker, which talks to the broker over the socket with this file descriptor."""
    os.nice(NICE)
    TelemetryWorker(socket.socket(fileno=descriptor)).run()
    os._exit(0)  # A request to a collector that does not answer must not delay the end.
