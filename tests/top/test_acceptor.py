"""Acceptors: each accepted connection gets a transport, and no descriptor stays open."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from tests.top.running import PATIENCE
from trellis.server.acceptor import ACCEPTS_PER_TURN, LinkAcceptor

#: Number of connections that wait when the acceptor begins: more than it accepts in one turn.
MANY: Final = 10 * ACCEPTS_PER_TURN


class Greeting(asyncio.Protocol):
    """Greets a client, and closes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.write(b"hello")
        stream.close()


def no_refusal(reason: str) -> None:
    raise AssertionError(reason)


@contextmanager
def listening_at(
    address: tuple[str, int] | str, family: int = socket.AF_INET
) -> Iterator[socket.socket]:
    with socket.socket(family) as listening:
        listening.bind(address)
        listening.listen(MANY)
        listening.setblocking(False)
        yield listening


@contextmanager
def clients_of(listening: socket.socket, count: int) -> Iterator[list[socket.socket]]:
    """Connect clients to a listening socket, which need not accept them yet."""
    clients = [socket.socket(listening.family) for _ in range(count)]
    for client in clients:
        client.connect(listening.getsockname())
        client.setblocking(False)
    yield clients
    for client in clients:
        client.close()


@asynccontextmanager
async def accepting(
    listening: socket.socket, make: Callable[[], asyncio.Protocol]
) -> AsyncIterator[None]:
    acceptor = LinkAcceptor(listening, make, no_refusal)
    yield
    acceptor.close()


async def received(client: socket.socket) -> bytes:
    """Return all that a client receives until its connection is closed."""
    loop, data = asyncio.get_running_loop(), b""
    while part := await loop.sock_recv(client, 64):
        data += part
    return data


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "file"])
async def test_waiting_connections_are_served_in_order_and_leave_no_descriptor(
    address: str, tmp_path: Path
) -> None:
    family = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6, "file": socket.AF_UNIX}[address]
    with listening_at(
        str(tmp_path / "file") if address == "file" else (address, 0), family
    ) as listening:
        async with accepting(listening, Greeting):
            with clients_of(listening, MANY) as clients:
                assert [await received(client) for client in clients] == [b"hello"] * MANY
            before = len(os.listdir("/proc/self/fd"))
            with clients_of(listening, MANY) as clients:
                assert [await received(client) for client in clients] == [b"hello"] * MANY
            assert len(os.listdir("/proc/self/fd")) == before


async def test_a_connection_without_a_protocol_is_closed_and_the_next_one_is_served() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    failure = ValueError("no protocol")
    attempts = iter([failure, None])

    def make() -> asyncio.Protocol:
        if error := next(attempts):
            raise error
        return Greeting()

    with listening_at(("127.0.0.1", 0)) as listening, clients_of(listening, 2) as clients:
        async with accepting(listening, make):
            assert [await received(client) for client in clients] == [b"", b"hello"]
    assert failures == [failure]


async def test_a_client_that_has_aborted_leaves_no_descriptor() -> None:
    ended: list[Exception | None] = []
    all_ended = asyncio.Event()

    class Ending(Greeting):
        def connection_lost(self, error: Exception | None) -> None:
            ended.append(error)
            if len(ended) == MANY:
                all_ended.set()

    with listening_at(("127.0.0.1", 0)) as listening:
        async with accepting(listening, Greeting):
            # uvloop opens /dev/null for its first connection.
            with clients_of(listening, 1) as clients:
                assert await received(clients[0]) == b"hello"
        before = len(os.listdir("/proc/self/fd"))
        with clients_of(listening, MANY) as clients:
            for client in clients[::2]:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            async with accepting(listening, Ending), asyncio.timeout(PATIENCE):
                for client in clients[1::2]:
                    assert await received(client) == b"hello"
                await all_ended.wait()
                await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) == before
