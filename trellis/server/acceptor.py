"""Acceptors: accept the connections of one listening socket, at a limited pace.

    listening socket -> descriptor -> transport of the event loop -> protocol

The servers of asyncio and uvloop would accept all waiting connections at once, which blocks the
event loop when a thousand clients connect together; and uvloop's server closes its port for good
when file descriptors run out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import uvloop

from trellis import logs

#: Number of connections accepted from one socket in one turn of the event loop, before open links
#: are served. To accept and open four connections takes about 220,000 instructions.
ACCEPTS_PER_TURN: Final = 4
#: Seconds without accepting after file descriptors or memory have run out.
PAUSE: Final = 1.0
#: Shortest time in seconds between two log lines about pauses of one socket.
LOG_INTERVAL: Final = 60.0

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Acceptor:
    """The base class of acceptors: accepts connections, and pauses when no descriptor is free."""

    #: Key of the setting that limits the number of connections, for the log.
    LIMIT = "limits.connections"

    def __init__(self, sock: socket.socket, count_refusal: Callable[[str], None]) -> None:
        """Begin to accept the connections of a listening socket.

        `count_refusal` counts a pause in accepting, by its reason.
        """
        self._sock = sock
        self._count_refusal = count_refusal
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        #: Time of the last log line about a pause.
        self._pause_logged = -LOG_INTERVAL
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                # `accept` of socket.socket would make a socket object from the descriptor. That
                # takes a system call, and conversions of enums in Python.
                descriptor = self._sock._accept()[0]  # type: ignore[attr-defined]
            except (BlockingIOError, InterruptedError, ConnectionError):
                return  # No connection waits, or the first was closed meanwhile.
            except OSError as error:
                self._pause_accepting(error)
                return
            self._make_transport(descriptor)

    def _make_transport(self, descriptor: int) -> None:
        """Make the transport and the protocol of the accepted connection with this descriptor."""
        raise NotImplementedError

    def _pause_accepting(self, error: OSError) -> None:
        """Pause accepting, because file descriptors or memory are exhausted.

        New clients wait in the kernel.
        """
        self._count_refusal("descriptors")
        now = self._loop.time()
        if now - self._pause_logged >= LOG_INTERVAL:
            self._pause_logged = now
            logs.warning(
                "accept_paused",
                seconds=PAUSE,
                error=error.strerror,
                note=f"raise the descriptor limit or lower {self.LIMIT}; further pauses of "
                "this socket are counted and logged once a minute",
            )
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(PAUSE, self._listen)

    def _socket(self, descriptor: int) -> socket.socket:
        """Return the socket object of an accepted connection."""
        sock = socket.socket(self._sock.family, self._sock.type, self._sock.proto, descriptor)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        """Stop accepting connections."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        else:
            self._loop.remove_reader(self._sock)


class AcceptedDescriptor:
    """The descriptor of an accepted TCP connection, which replaces a socket object for uvloop.

    uvloop reads and writes through the descriptor only. A socket object would take 100 bytes more
    for each connection, and would convert its family and type to enums at each access.
    """

    __slots__ = ("_descriptor",)

    family: Final = int(socket.AF_INET)
    type: Final = int(socket.SOCK_STREAM)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor; -1 after `close`."""
        return self._descriptor

    def close(self) -> None:
        """Forget the descriptor, which uvloop has closed."""
        self._descriptor = -1


class LinkAcceptor(Acceptor):
    """The acceptor of the connections of one socket; `make` returns the protocol of each one.

    A transport gets ready in a later turn of the event loop. Until then, the event loop's coroutine
    `connect_accepted_socket` is suspended. LinkAcceptor runs these coroutines itself: a task for
    each of them would take longer than the coroutine.
    """

    def __init__(
        self, sock: socket.socket, make: ProtocolFactory, count_refusal: Callable[[str], None]
    ) -> None:
        self._make = make
        #: The suspended coroutines, each with the future that it awaits.
        self._opening: list[tuple[Coroutine[Any, Any, object], asyncio.Future[None]]] = []
        self._needs_descriptor = sock.family != socket.AF_UNIX and isinstance(
            asyncio.get_running_loop(), uvloop.Loop
        )
        super().__init__(sock, count_refusal)

    def _make_transport(self, descriptor: int) -> None:
        sock = cast(
            socket.socket,
            AcceptedDescriptor(descriptor) if self._needs_descriptor else self._socket(descriptor),
        )
        opening = self._loop.connect_accepted_socket(self._make, sock)
        try:
            waiter = opening.send(None)
        except Exception as error:  # noqa: BLE001  the other connections must be opened
            # The protocol could not be made, so no transport has the descriptor.
            if self._needs_descriptor:
                os.close(descriptor)
            sock.close()
            self._log_failure(error)
            return
        if not self._opening:
            self._loop.call_soon(self._finish)
        self._opening.append((opening, waiter))

    def _finish(self) -> None:
        """Run the coroutines of the transports that are ready to their end."""
        waiting = []
        for opening, waiter in self._opening:
            if not waiter.done():
                waiting.append((opening, waiter))
                continue
            try:
                opening.send(None)
            except StopIteration:
                pass
            except OSError:
                pass  # The client has disconnected; the coroutine has closed the transport.
            except Exception as error:  # noqa: BLE001  the other connections must be opened
                self._log_failure(error)
        self._opening = waiting
        if waiting:
            self._loop.call_soon(self._finish)

    def _log_failure(self, error: Exception) -> None:
        message = "unexpected exception while an accepted connection was opened"
        self._loop.call_exception_handler({"message": message, "exception": error})
