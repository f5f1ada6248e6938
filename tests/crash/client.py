"""The base class of clients that work while a broker is started and killed again and again."""

from __future__ import annotations

from random import Random

from tests.crash.wire import GONE


class Ports:
    """The ports on which the broker listens from one start to the next kill.

    `killed` is True once the test has requested the kill.
    """

    def __init__(self, amqp: int, mqtt: int, http: int) -> None:
        self.amqp = amqp
        self.mqtt = mqtt
        self.http = http
        self.killed = False


class Client:
    """A client that works until the broker ends.

    The client draws its actions from its own random numbers.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = Random(f"{seed} {name}")

    async def run(self, ports: Ports) -> None:
        try:
            await self.live(ports)
        except GONE as error:
            if not ports.killed:
                raise AssertionError(
                    f"{self.name}: the broker ended the connection: {error!r}"
                ) from error
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}") from error

    async def live(self, ports: Ports) -> None:
        raise NotImplementedError
