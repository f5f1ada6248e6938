"""Listeners: open ports and Unix sockets, then accept connections at a limited pace.

All ports are opened before the first client is served, so a port in use is reported in one line and
ends the start. `acceptor.py` accepts the connections.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trellis.server.acceptor import LinkAcceptor, ProtocolFactory
from trellis.settings import Listener, PlainListener

#: Largest number of connections that wait in the kernel for their acceptance, for each socket.
BACKLOG: Final = 4_096
#: For port 0: number of attempts to find a port that is free on every address.
TRIES: Final = 20


class ListenError(Exception):
    """Raised if a port or Unix socket cannot be opened.

    The text names the address, the reason and a remedy.
    """


class BoundListener:
    """The open sockets of one listener."""

    def __init__(
        self, name: str, sockets: list[socket.socket], file: SocketFile | None = None
    ) -> None:
        self.name = name
        self.sockets = sockets
        self._file = file
        self._acceptors: list[LinkAcceptor] = []

    @property
    def address(self) -> str:
        """Return the first address as HOST:PORT."""
        host, port = self.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def serve(self, make: ProtocolFactory, count_refusal: Callable[[str], None]) -> None:
        """Begin to accept connections; `make` makes the protocol object of each connection.

        `count_refusal` counts a refused connection, or a pause in accepting, by reason.
        """
        files = [] if self._file is None else [self._file.socket]
        self._acceptors = [LinkAcceptor(sock, make, count_refusal) for sock in self.sockets + files]

    def pause(self) -> None:
        """Stop accepting until `serve` is called again.

        New clients wait in the kernel meanwhile.
        """
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()

    def close(self) -> None:
        """Stop accepting, and close the sockets."""
        self.pause()
        for sock in self.sockets:
            sock.close()
        if self._file is not None:
            self._file.close()


def bind(name: str, listener: Listener) -> BoundListener:
    """Open the port of a listener on all its addresses, and its Unix socket.

    Raises ListenError.
    """
    file = (
        SocketFile(name, listener)
        if isinstance(listener, PlainListener) and listener.socket
        else None
    )
    try:
        return BoundListener(name, _bind_port(name, listener), file)
    except ListenError:
        if file is not None:
            file.close()
        raise


def _bind_port(name: str, listener: Listener) -> list[socket.socket]:
    """Open the port of a listener on all its addresses. Raises ListenError."""
    for attempt in range(TRIES):
        try:
            return _bind_all(listener)
        except OSError as error:
            if listener.port or error.errno != errno.EADDRINUSE or attempt == TRIES - 1:
                raise ListenError(_explain(name, listener, error)) from error
    raise AssertionError("unreachable")


def _bind_all(listener: Listener) -> list[socket.socket]:
    """Open one socket for each address of a listener, all with the same port.

    Skip the addresses that this machine does not have, such as IPv6 in many containers. Raises
    OSError for any other problem, or if the machine has none of the addresses.
    """
    sockets: list[socket.socket] = []
    port = listener.port
    missing: OSError | None = None
    try:
        for address in listener.addresses:
            try:
                sockets.append(_bind_one(address, port))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
                continue
            port = sockets[0].getsockname()[1]
        if not sockets:
            assert missing is not None
            raise missing
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_one(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        # Listening reserves the port: other programs could still bind a port that is only bound.
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _explain(name: str, listener: Listener, error: OSError) -> str:
    where = f"{listener.host} port {listener.port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{name}: {where} is in use; stop the program that has it, or set {_key(name, 'port')}"
        )
    if error.errno == errno.EACCES:
        return (
            f"{name}: {where} may not be used by the broker's user; "
            f"set {_key(name, 'port')} to a port above 1023"
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return (
            f"{name}: {listener.host} is not an address of this machine; set {_key(name, 'host')}"
        )
    return f"{name}: cannot listen on {where}: {error.strerror}; set {_key(name, 'port')}"


class SocketFile:
    """An open Unix socket, and its file.

    The constructor replaces the file of a broker that has ended. Raises ListenError for any other
    existing file, and if the socket cannot be opened.
    """

    def __init__(self, name: str, listener: PlainListener) -> None:
        self.path = Path(listener.socket).expanduser()
        key = _key(name, "socket")
        try:
            if self.path.exists():
                self._remove_dead(name, key)
            self.socket = _bind_file(self.path, listener.mode)
            self._inode = os.stat(self.path).st_ino
        except OSError as error:
            raise ListenError(
                f"{name}: cannot listen on {self.path}: {error.strerror}; "
                f"make its directory writable for this user, or set {key}"
            ) from error

    def _remove_dead(self, name: str, key: str) -> None:
        """Remove the socket file of a broker that has ended. Raises ListenError, OSError.

        A file that is not a socket, or on which a program listens, is an error. `key` is the
        setting to change, for the error message.
        """
        if not stat.S_ISSOCK(os.stat(self.path).st_mode):
            raise ListenError(
                f"{name}: {self.path} exists and is not a socket; remove it, or set {key}"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            error = probe.connect_ex(os.fspath(self.path))
        if error != errno.ECONNREFUSED:
            raise ListenError(
                f"{name}: {self.path} is in use; stop the program that has it, or set {key}"
            )
        self.path.unlink()

    def close(self) -> None:
        """Close the Unix socket. Remove its file, unless another program has replaced it."""
        self.socket.close()
        try:
            if os.stat(self.path).st_ino == self._inode:
                self.path.unlink()
        except OSError:
            pass


def _bind_file(path: Path, mode: int) -> socket.socket:
    """Open a Unix socket; its mode is set before clients can connect. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        path.chmod(mode)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _key(section: str, name: str) -> str:
    """Return the key of an option with its environment variable and flag, for an error message."""
    return f"{section}.{name} (TRELLIS_{section.upper()}_{name.upper()}, --{section}-{name})"
