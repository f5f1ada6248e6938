"""Clients that do as they like, within their protocols: they remember what they sent, and tell the
ledger what they learn.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from protocols.connection import Connection

if TYPE_CHECKING:
    from tests.store.simulation.schedule import Simulation


def named(body: bytes) -> str:
    """The message that a body belongs to."""
    return body.split(b"|", 1)[0].decode()


class Client:
    """Connects, acts, hears, and is cut off.

    What the broker sent waits in `pipe` until the client listens.
    """

    def __init__(self, world: Simulation, name: str) -> None:
        self.world = world
        self.name = name
        self.random: Random = world.random
        self.connection: Connection | None = None
        self.pipe: list[bytes] = []

    @property
    def ready(self) -> bool:
        """Whether the broker listens."""
        connection = self.connection
        return (
            connection is not None
            and not connection.stalled
            and not connection.behind
            and not connection.finished
        )

    def tell(self, data: bytes) -> None:
        """Send, if there is somebody at the other end."""
        if self.connection is not None:
            self.connection.receive_data(data)

    def flush(self) -> None:
        """The broker writes what it has for us."""
        connection = self.connection
        if connection is None:
            return
        if connection.behind and not connection.stalled:
            connection.resume()
        data = connection.data_to_send()
        if data:
            self.pipe.append(data)

    def step(self) -> None:
        """Do something."""
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
        """The network is gone; what was under way is lost."""
        connection, self.connection = self.connection, None
        self.pipe.clear()
        if connection is not None:
            connection.on_closed()
            self.cut_off()

    def crashed(self) -> None:
        """The broker is gone. What it had sent arrives, or not."""
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
        """The connection is over."""

    def finish(self) -> bool:
        """The end is near: only complete what has begun. Whether there is nothing left to do."""
        if self.connection is None:
            self.connect()
            return False
        if self.connection.paused:
            self.connection.resume_writing()
        if self.pipe:
            self.listen()
            return False
        return self.ready
