"""The devices of device_day.py, the other clients, and the day that they share."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

from device_clients import Client, DayFailed, DayTally, encoded_connect, encoded_publish
from peers.process import LOOPBACK

HOURS: Final = 24
#: Means in hours: the time for which a device is awake, a short sleep, and a long sleep.
AWAKE, NAP, SLEEP = 2.0, 0.5, 3.0
LONG_SHARE: Final = 0.1
#: Hours for which the broker keeps the session of a sleeping device, and hours until its will.
EXPIRY, WILL_DELAY = 2.0, 0.1
#: Measurements of an awake device in an hour, with each QoS.
RATE: Final = 4
#: Seconds that an answer of the broker may take.
PATIENCE: Final = 60.0
#: Seconds by which the broker may end a session, or publish a will, too early or too late.
MARGIN: Final = 5.0


class Day:
    """The state that all clients share: the port, the speed of time, the counts, the checks."""

    def __init__(self, port: int, minutes: float) -> None:
        self.port = port
        #: Seconds of an hour of the day.
        self.hour = minutes * 60 / HOURS
        self.random = Random(1)
        self.tally = DayTally()
        self.counts = self.tally.counts
        #: Confirmed measurements that no consumer has received: device and number.
        self.outstanding: set[tuple[int, int]] = set()
        #: Measurements that a consumer received before their confirmation.
        self.early: set[tuple[int, int]] = set()
        #: Clear while all devices pause.
        self.running = asyncio.Event()
        self.running.set()

    async def wait(self, hours: float) -> None:
        """Wait for a random time with this mean, then until the devices do not pause."""
        await asyncio.sleep(self.random.expovariate(1 / (hours * self.hour)))
        await self.running.wait()

    async def connect(self, client: Client) -> None:
        """Connect a client, and wait for CONNACK."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, LOOPBACK, self.port)
        await asyncio.wait_for(client.connected, PATIENCE)

    def received(self, device: int, number: int, again: bool) -> None:
        """Count a measurement that a consumer received; `number` is 0 for QoS 0."""
        if number == 0:
            self.counts["qos 0 received"] += 1
            return
        self.counts["received"] += 1
        if (device, number) in self.outstanding:
            self.outstanding.remove((device, number))
        elif again:
            self.counts["repeated"] += 1
        else:
            self.early.add((device, number))

    def confirmed(self, device: int, number: int) -> None:
        """Count a measurement that the broker has confirmed."""
        self.counts["confirmed"] += 1
        if (device, number) in self.early:
            self.early.remove((device, number))
        else:
            self.outstanding.add((device, number))


class CheckedClient(Client):
    """A client whose wrong answers end the day; it expects no message."""

    def __init__(self, day: Day, name: str, connect: bytes) -> None:
        super().__init__(name, connect)
        self.day = day

    def on_wrong(self, error: DayFailed) -> None:
        self.day.tally.stop(error)

    def on_publish(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        raise DayFailed(f"client {self.name}: a message with the topic {topic}")


class DeviceClient(CheckedClient):
    """One connection of a device."""

    def __init__(self, device: Device, connect: bytes) -> None:
        super().__init__(device.day, device.name, connect)
        self._device = device

    def on_publish(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        self._device.on_command(int(body), again)


class Device:
    """A device: its session, its status, and the commands that it must receive."""

    def __init__(self, day: Day, number: int) -> None:
        self.day = day
        self.number = number
        self.name = f"device-{number:06}"
        self.client: DeviceClient | None = None
        #: The retained status that the broker must have, and the time from which it has it.
        self.status = b""
        self.status_since = float("inf")
        #: Confirmed commands of this session that the device has not received.
        self.commands: set[int] = set()
        #: Commands of this session that the device has received.
        self.done: set[int] = set()
        self._measurements = 0
        self._left_at = 0.0
        self._known = False

    def topic(self, part: str) -> str:
        """Return the topic of the status, the command or the measurement of this device."""
        return f"plant/{self.number % 100}/device/{self.number}/{part}"

    async def live(self) -> None:
        """Wake and sleep in turn, until cancelled."""
        await asyncio.sleep(self.day.random.random() * self.day.hour)
        while True:
            await self.day.running.wait()
            client = await self._wake()
            end = self.day.random.expovariate(1 / (AWAKE * self.day.hour)) + time.monotonic()
            while time.monotonic() < end:
                await self._measure(client)
            await self._leave(client)
            sleeps_long = self.day.random.random() < LONG_SHARE
            await self.day.wait(SLEEP if sleeps_long else NAP)

    async def _wake(self) -> DeviceClient:
        day = self.day
        expiry = max(1, round(EXPIRY * day.hour))
        will = (self.topic("status"), b"lost", max(1, round(WILL_DELAY * day.hour)))
        client = DeviceClient(self, encoded_connect(self.name, expiry, will))
        slept = time.monotonic() - self._left_at
        self.status_since = float("inf")
        await day.connect(client)
        day.counts["connects"] += 1
        if client.session_present and (not self._known or slept > expiry + MARGIN):
            raise DayFailed(f"{self.name}: a session is present after {slept:.1f} s of sleep")
        if not client.session_present:
            if self._known and slept < expiry - MARGIN:
                raise DayFailed(f"{self.name}: the session is gone after {slept:.1f} s of sleep")
            day.counts["sessions ended"] += self._known
            await asyncio.wait_for(client.subscribe(self.topic("command")), PATIENCE)
            self.commands.clear()
            self.done.clear()
        self._known = True
        self.client = client
        await self._set_status(client, b"online")
        return client

    async def _set_status(self, client: DeviceClient, status: bytes) -> None:
        self.status_since = float("inf")
        answer = client.publish(self.topic("status"), status, retain=True)
        await asyncio.wait_for(answer, PATIENCE)
        self.status, self.status_since = status, time.monotonic()

    async def _measure(self, client: DeviceClient) -> None:
        self._measurements += 1
        number = self._measurements
        topic, filler = self.topic("measurement"), bytes(80)
        body = b"%d %d " % (self.number, number) + filler
        await asyncio.wait_for(client.publish(topic, body), PATIENCE)
        self.day.confirmed(self.number, number)
        client.send(encoded_publish(topic, b"%d 0 " % self.number + filler))
        self.day.counts["qos 0"] += 1
        client.ping()
        await self.day.wait(1 / RATE)

    async def _leave(self, client: DeviceClient) -> None:
        if self.day.random.random() < 0.5:
            await self._set_status(client, b"asleep")
            client.disconnect()
        else:
            client.vanish()
            self.day.counts["vanished"] += 1
            delay = max(1, round(WILL_DELAY * self.day.hour))
            self.status, self.status_since = b"lost", time.monotonic() + delay + MARGIN
        self.client = None
        self._left_at = time.monotonic()

    def on_command(self, number: int, again: bool) -> None:
        """Handle a command; a repeated command must have the DUP flag."""
        if number in self.done and not again:
            raise DayFailed(f"{self.name}: command {number} came twice without DUP")
        self.day.counts["commands"] += number not in self.done
        self.done.add(number)
        self.commands.discard(number)


class MeasurementConsumer(CheckedClient):
    """A connection of a consumer of the shared subscription to all measurements."""

    def on_publish(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        device, number, _ = body.split(b" ", 2)
        self.day.received(int(device), int(number), again)


class Dashboard(CheckedClient):
    """A client that reads the retained statuses of all devices."""

    def __init__(self, day: Day, name: str, connect: bytes) -> None:
        super().__init__(day, name, connect)
        self.statuses: dict[str, bytes] = {}

    def on_publish(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        if not retained:
            return
        if topic in self.statuses:
            raise DayFailed(f"{self.name}: the retained message of {topic} came twice")
        self.statuses[topic] = body
