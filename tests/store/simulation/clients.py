"""The base of the simulated clients: they act at random within a protocol, and keep a ledger."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from protocols.connection import Connection

if TYPE_CHECKING:
    from tests.store.simulation.schedule import Simulation


def named(body: bytes) -> str:
    """Return the name of the message with this body: the part of the body before `|`."""
    return body.split(b"|", 1)[0].decode()


class Client:
    """A client that connects, acts, receives, and is disconnected.

    Bytes from the broker wait in `pipe` until the client reads them.
    """

    def __init__(self, world: Simulation, name: str) -> None:
        self.world = world
        self.name = name
        self.random: Random = world.random
        self.connection: Connection | None = None
        self.pipe: list[bytes] = []

    @property
    def ready(self) -> bool:
        """True if the client is connected, and the broker has handled all its input."""
        connection = self.connection
        return (
            connection is not None
            and not connection.stalled
            and not connection.behind
            and not connection.finished
        )

    def tell(self, data: bytes) -> None:
        """Send bytes to the broker, if the client is connected."""
        if self.connection is not None:
            self.connection.receive_data(data)

    def flush(self) -> None:
        """Move the bytes that the broker has for the client into `pipe`."""
        connection = self.connection
        if connection is None:
            return
        if connection.behind and not connection.stalled:
            connection.resume()
        data = connection.data_to_send()
        if data:
            self.pipe.append(data)

    def step(self) -> None:
        """Take one random step: connect, send, read or disconnect."""
        if self.connection is None:
            self.connect()
            return
        if self.pipe and self.random.random() < 0.7:
            self.listen()
        elif self.ready:
            if self.random.random() < 0.02:
                self.vanish()
            elif self.random.random() < 0.03:
                self.connection.pause_writing()
            elif self.connection.paused:
                self.connection.resume_writing()
            else:
                self.act()

    def listen(self) -> None:
        pipe, self.pipe = self.pipe, []
        self.hear(b"".join(pipe))

    def vanish(self) -> None:
        """Lose the network; bytes on the way are lost."""
        connection, self.connection = self.connection, None
        self.pipe.clear()
        if connection is not None:
            connection.on_closed()
            self.cut_off()

    def crashed(self) -> None:
        """Handle a crash of the broker: the bytes that the broker has sent arrive, or are lost."""
        if self.connection is not None:
            self.connection = None
            if self.random.random() < 0.5:
                self.listen()
            self.pipe.clear()
            self.cut_off()

    def connect(self) -> None:
        raise NotImplementedError

    def act(self) -> None:
        raise NotImplementedError

    def hear(self, data: bytes) -> None:
        raise NotImplementedError

    def cut_off(self) -> None:
        """Update the client's state after its connection has ended."""

    def finish(self) -> bool:
        """Take a step that begins no new work. Return True if the client has no work left."""
        if self.connection is None:
            self.connect()
            return False
        if self.connection.paused:
            self.connection.resume_writing()
        if self.pipe:
            self.listen()
            return False
        return self.ready
