"""Lets 10,000 MQTT devices live through a day in accelerated time, and measures whether the
broker's memory grows.

    .run/bin/python -P benchmarks/device_day.py
        --devices N            devices [10000]
        --minutes MINUTES      duration of the day [24]
        --trellis COMMAND      the broker [.run/bin/trellis]

A day of 24 hours takes 24 minutes by default, so an hour takes a minute (the *hour* below):

- A device (MQTT 5, persistent session) is awake for two hours on average. It then sleeps for half
  an hour, or for three hours (one of ten times), after which its session has expired. Half of the
  devices disconnect, the other half vanish as if they had lost their power, so that the broker
  publishes their wills after a delay.
- A device has a retained status (online, asleep, lost). Awake, it publishes a measurement four
  times in an hour with QoS 1, and four times with QoS 0.
- The operator sends a command to each device twice a day, with QoS 1, mostly while it sleeps.
- Four consumers share a subscription to all measurements. Each hour, one of them disconnects and
  connects again.
- Each hour, a new dashboard subscribes to all statuses, and then disconnects.

The program checks: a session is present exactly if it must be; each confirmed measurement reaches
one consumer, and none is lost; each device gets the commands that were confirmed while its session
existed; the dashboard gets one status of each device, and the status of each device that did not
change meanwhile is right.

Each hour, the program prints its counts, the CPU time of the broker and its resident memory (RSS).
Names repeat, so all names are known after the first hours. After a quarter of the day, and at its
end, the devices pause for QUIET seconds, in which the broker gives freed memory back: growth by
5 % plus 8 MiB is allowed, as in mixed_churn.py. The exit code is 1 if memory grows more, or if a
check fails.

Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

sys.path.append(str(Path(__file__).parent))  # `python -P` leaves out this directory.

import uvloop
from device_clients import Client, Tally, WrongAnswer, encoded_connect, encoded_publish
from peers.process import LOOPBACK, allow_files

from trellis.bench.processes import Processes

ROOT: Final = Path(__file__).resolve().parent.parent
HOURS: Final = 24
#: Means in hours: the time for which a device is awake, a short sleep, and a long sleep.
AWAKE, NAP, SLEEP = 2.0, 0.5, 3.0
LONG_SHARE: Final = 0.1
#: Hours for which the broker keeps the session of a sleeping device, and hours until its will.
EXPIRY, WILL_DELAY = 2.0, 0.1
#: Measurements of an awake device in an hour, with each QoS; and commands to a device in a day.
RATE, COMMANDS = 4, 2
CONSUMERS: Final = 4
#: Seconds without load before a measurement, as in mixed_churn.py.
QUIET: Final = 13.0
GROWTH_SHARE: Final = 0.05
GROWTH_BYTES: Final = 8 << 20
#: Seconds for which an answer of the broker may take.
PATIENCE: Final = 60.0
FLAGS: Final = (
    *("--config", os.devnull, "--log-level", "warning", "--limits-connections", "0"),
    *("--amqp-port", "0", "--mqtt-port", "0", "--metrics-port", "0", "--http-port", "0"),
)


class Day:
    """What all clients share: the broker's port, the speed of time, the counts and the checks."""

    def __init__(self, port: int, minutes: float) -> None:
        self.port = port
        #: Seconds of an hour of the day.
        self.hour = minutes * 60 / HOURS
        self.random = Random(1)
        self.tally = Tally()
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

    def on_wrong(self, error: WrongAnswer) -> None:
        self.day.tally.stop(error)

    def on_publish(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        raise WrongAnswer(f"client {self.name}: a message with the topic {topic}")


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
        margin = 5.0
        if client.session_present and (not self._known or slept > expiry + margin):
            raise WrongAnswer(f"{self.name}: a session is present after {slept:.1f} s of sleep")
        if not client.session_present:
            if self._known and slept < expiry - margin:
                raise WrongAnswer(f"{self.name}: the session is gone after {slept:.1f} s of sleep")
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
            self.status, self.status_since = b"lost", time.monotonic() + delay + 5.0
        self.client = None
        self._left_at = time.monotonic()

    def on_command(self, number: int, again: bool) -> None:
        """Handle a command; a repeated command must have the DUP flag."""
        if number in self.done and not again:
            raise WrongAnswer(f"{self.name}: command {number} came twice without DUP")
        self.day.counts["commands"] += number not in self.done
        self.done.add(number)
        self.commands.discard(number)


class Consumer(CheckedClient):
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
            raise WrongAnswer(f"{self.name}: the retained message of {topic} came twice")
        self.statuses[topic] = body


async def operate(day: Day, devices: list[Device]) -> None:
    """Send commands to random devices, until cancelled."""
    client = CheckedClient(day, "operator", encoded_connect("operator", 0, clean=True))
    await day.connect(client)
    number = 0
    while True:
        await day.wait(HOURS / COMMANDS / len(devices))
        number += 1
        device = day.random.choice(devices)
        # A device that lies between two sessions forgets the command when it subscribes again.
        device.commands.add(number)
        body = str(number).encode()
        await asyncio.wait_for(client.publish(device.topic("command"), body), PATIENCE)
        client.ping()
        day.counts["commands sent"] += 1


async def consume(day: Day, number: int) -> None:
    """Receive measurements of the shared subscription, until cancelled.

    The consumer disconnects and connects again after CONSUMERS hours on average.
    """
    name = f"consumer-{number}"
    while True:
        consumer = Consumer(day, name, encoded_connect(name, 3_600))
        await day.connect(consumer)
        if not consumer.session_present:
            await consumer.subscribe("$share/store/plant/+/device/+/measurement")
        day.counts["consumers"] += 1
        end = time.monotonic() + day.random.expovariate(1 / (CONSUMERS * day.hour))
        while time.monotonic() < end:
            await asyncio.sleep(min(20.0, max(0.01, end - time.monotonic())))
            consumer.ping()
        consumer.disconnect()
        await consumer.closed.wait()


async def look(day: Day, devices: list[Device], number: int) -> None:
    """Connect a new dashboard, and compare the statuses that it gets with those of the devices."""
    name = f"dashboard-{number % 2}"
    client = Dashboard(day, name, encoded_connect(name, 0, clean=True))
    await day.connect(client)
    began = time.monotonic()
    await client.subscribe("plant/+/device/+/status")
    known = {device.topic("status"): device for device in devices if device.status}
    while known.keys() - client.statuses.keys():
        if time.monotonic() > began + PATIENCE:
            missing = sorted(known.keys() - client.statuses.keys())
            raise WrongAnswer(
                f"{name}: no retained message of {len(missing)} topics: {missing[:3]}"
            )
        await asyncio.sleep(0.1)
    for topic, device in known.items():
        if device.status_since < began - 1.0 and client.statuses[topic] != device.status:
            raise WrongAnswer(
                f"{name}: {topic} is {client.statuses[topic]!r} instead of {device.status!r}"
            )
    day.counts["statuses"] += len(known)
    client.disconnect()
    await client.closed.wait()


async def settle(day: Day, devices: list[Device]) -> None:
    """Let all devices pause; wait until all confirmed messages have arrived. Raises WrongAnswer."""
    day.running.clear()
    end = time.monotonic() + PATIENCE
    while True:
        late = [device.name for device in devices if device.client and device.commands]
        if not late and not day.outstanding and not day.early:
            break
        if time.monotonic() > end:
            raise WrongAnswer(
                f"{len(day.outstanding)} confirmed measurements reached no consumer, "
                f"{len(day.early)} arrived and were not confirmed, and commands are missing at "
                f"{len(late)} devices, such as {late[:3]}"
            )
        await asyncio.sleep(0.1)
    await asyncio.sleep(QUIET)


class Report:
    """Prints the counts of each hour, and the memory and CPU time of the broker."""

    TITLES: Final = ("connects", "vanished", "sessions ended", "confirmed", "received", "commands")

    def __init__(self, day: Day, pid: int) -> None:
        self._day = day
        self._pid = pid
        self._processes = Processes([pid])
        self._cpu = self._processes.cpu()
        self._at = time.monotonic()
        print(" hour  awake " + "".join(f"{title:>15}" for title in self.TITLES) + "   CPU     RSS")

    def resident(self) -> int:
        """Return the resident memory of the broker in bytes."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def line(self, hour: int, awake: int) -> None:
        """Print the counts of the day so far, and the share of a processor since the last line."""
        cpu, now = self._processes.cpu(), time.monotonic()
        share = cpu.since(self._cpu).seconds / (now - self._at)
        self._cpu, self._at = cpu, now
        counts = "".join(f"{self._day.counts[title]:15,}" for title in self.TITLES)
        resident = self.resident() / 1e6
        print(f"{hour:5} {awake:6,} {counts} {share:5.1%} {resident:6.1f}M", flush=True)


async def live(port: int, pid: int, count: int, minutes: float) -> int:
    """Run the day; return 0, or 1 if memory grew too much. Raises WrongAnswer."""
    day = Day(port, minutes)
    devices = [Device(day, number) for number in range(count)]
    tasks = [
        asyncio.create_task(work)
        for work in (
            *(consume(day, number) for number in range(CONSUMERS)),
            operate(day, devices),
            *(device.live() for device in devices),
        )
    ]
    try:
        return await watch(day, devices, tasks, Report(day, pid))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def watch(
    day: Day, devices: list[Device], tasks: list[asyncio.Task[None]], report: Report
) -> int:
    """Print a line for each hour, and check the statuses and the memory.

    Return 0, or 1 if memory grew too much. Raises WrongAnswer, and the first error of a task.
    """
    first = resident = 0
    for hour in range(1, HOURS + 1):
        done, _ = await asyncio.wait(tasks, timeout=day.hour, return_when=asyncio.FIRST_EXCEPTION)
        if day.tally.wrong is not None:
            raise day.tally.wrong
        for task in done:
            task.result()
        await look(day, devices, hour)
        if hour in (HOURS // 4, HOURS):
            await settle(day, devices)
            resident = report.resident()
            first = first or resident
        report.line(hour, sum(device.client is not None for device in devices))
        day.running.set()
    limit = int(first * (1 + GROWTH_SHARE)) + GROWTH_BYTES
    print(
        f"{resident / 1e6:.1f} MB at the end, {first / 1e6:.1f} MB after a quarter of the day "
        f"(at most {limit / 1e6:.1f} MB are allowed); {day.counts['statuses']:,} statuses read, "
        f"{day.counts['repeated']:,} measurements repeated, "
        f"{day.counts['qos 0 received']:,} of {day.counts['qos 0']:,} with QoS 0 received"
    )
    return int(resident > limit)


def main() -> int:
    """Start a broker, run the day, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=10_000, help="number of devices [10000]")
    parser.add_argument("--minutes", type=float, default=24.0, help="duration of the day [24]")
    parser.add_argument("--trellis", default=str(ROOT / ".run/bin/trellis"), help="the broker")
    chosen = parser.parse_args()
    allow_files()
    with tempfile.TemporaryDirectory(prefix="device-day-") as directory:
        command = [*shlex.split(chosen.trellis), "serve", *FLAGS, "--data-dir", directory]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            ready = dict(word.split("=") for word in broker.stdout.readline().split()[1:])
            port = int(ready["mqtt"].rpartition(":")[2])
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(live(port, broker.pid, chosen.devices, chosen.minutes))
        except WrongAnswer as error:
            sys.exit(f"device_day: {error}")
        finally:
            broker.terminate()
            broker.wait(30)


if __name__ == "__main__":
    sys.exit(main())
