"""What all clients share: a life with each life of the broker."""

from __future__ import annotations

from random import Random

from tests.crash.wire import GONE


class Ports:
    """Where the broker listens now; `killed` once its end was asked for."""

    def __init__(self, amqp: int, mqtt: int, http: int) -> None:
        self.amqp = amqp
        self.mqtt = mqtt
        self.http = http
        self.killed = False


class Client:
    """Works until the broker is gone. What it does is drawn from its own numbers."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = Random(f"{seed} {name}")

    async def run(self, ports: Ports) -> None:
        try:
            await self.live(ports)
        except GONE as error:
            if not ports.killed:
                raise AssertionError(f"{self.name}: the broker hung up: {error!r}") from error
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}") from error

    async def live(self, ports: Ports) -> None:
        raise NotImplementedError
