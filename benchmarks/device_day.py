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
from typing import Final

sys.path.append(str(Path(__file__).parent))  # `python -P` leaves out this directory.

import uvloop
from device_clients import DayFailed, encoded_connect
from device_life import (
    HOURS,
    PATIENCE,
    CheckedClient,
    Dashboard,
    Day,
    Device,
    MeasurementConsumer,
)
from peers.process import allow_files

from trellis.bench.processes import Processes

ROOT: Final = Path(__file__).resolve().parent.parent
#: Commands to a device in a day.
COMMANDS: Final = 2
CONSUMERS: Final = 4
#: Seconds without load before a measurement, as in mixed_churn.py.
QUIET: Final = 13.0
GROWTH_SHARE: Final = 0.05
GROWTH_BYTES: Final = 8 << 20
FLAGS: Final = (
    *("--config", os.devnull, "--log-level", "warning", "--limits-connections", "0"),
    *("--amqp-port", "0", "--mqtt-port", "0", "--metrics-port", "0", "--http-port", "0"),
)


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
        consumer = MeasurementConsumer(day, name, encoded_connect(name, 3_600))
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
            raise DayFailed(f"{name}: no retained message of {len(missing)} topics: {missing[:3]}")
        await asyncio.sleep(0.1)
    for topic, device in known.items():
        if device.status_since < began - 1.0 and client.statuses[topic] != device.status:
            raise DayFailed(
                f"{name}: {topic} is {client.statuses[topic]!r} instead of {device.status!r}"
            )
    day.counts["statuses"] += len(known)
    client.disconnect()
    await client.closed.wait()


async def settle(day: Day, devices: list[Device]) -> None:
    """Let all devices pause; wait until all confirmed messages have arrived. Raises DayFailed."""
    day.running.clear()
    end = time.monotonic() + PATIENCE
    while True:
        late = [device.name for device in devices if device.client and device.commands]
        if not late and not day.outstanding and not day.early:
            break
        if time.monotonic() > end:
            raise DayFailed(
                f"{len(day.outstanding)} confirmed measurements reached no consumer, "
                f"{len(day.early)} arrived and were not confirmed, and commands are missing at "
                f"{len(late)} devices, such as {late[:3]}"
            )
        await asyncio.sleep(0.1)
    await asyncio.sleep(QUIET)


class HourReport:
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
    """Run the day; return 0, or 1 if memory grew too much. Raises DayFailed."""
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
        return await watch(day, devices, tasks, HourReport(day, pid))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def watch(
    day: Day, devices: list[Device], tasks: list[asyncio.Task[None]], report: HourReport
) -> int:
    """Print a line for each hour, and check the statuses and the memory.

    Return 0, or 1 if memory grew too much. Raises DayFailed, and the first error of a task.
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
        except DayFailed as error:
            sys.exit(f"device_day: {error}")
        finally:
            broker.terminate()
            broker.wait(30)


if __name__ == "__main__":
    sys.exit(main())
