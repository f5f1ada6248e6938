"""Tests that the measured CPU time and memory of processes equal the values in /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from trellis.bench.errors import Unreachable
from trellis.bench.processes import Cpu, Processes

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_cpu_of_all_threads_is_counted() -> None:
    me = Processes([os.getpid()])
    over = threading.Event()

    def work() -> None:
        burn(0.06)
        over.wait()

    thread = threading.Thread(target=work)
    before = me.cpu()
    thread.start()
    burn(0.06)
    while me.cpu().since(before).seconds < 0.11:
        burn(0.001)
    over.set()
    thread.join()
    # The CPU time of the thread, which has ended, still counts.
    assert me.cpu().since(before).seconds >= 0.1


def test_threads_that_ended_are_counted_in_ticks() -> None:
    before = Cpu({(1, 1): 5_000_000, (1, 2): 7_000_000}, 10, 10)
    after = Cpu({(1, 1): 25_000_000}, 14, 11)
    assert after.since(before) == (0.05, 0.2)
    assert Cpu({(1, 1): 25_000_000, (1, 2): 7_000_000}, 14, 11).since(before) == (0.02, 0.2)
    assert before.since(before) == (0.0, 0.0)


def test_kernel_without_schedstat_counts_in_ticks() -> None:
    assert Cpu({}, 13, 13).since(Cpu({}, 10, 10)) == (0.06, 0.5)


def test_children_are_counted_on_request() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert Processes([os.getpid()]).pids == [os.getpid()]
        assert child.pid in Processes([os.getpid()], children=True).pids
        assert (
            Processes([os.getpid()], children=True).memory().now
            > Processes([os.getpid()]).memory().now
        )
    finally:
        child.communicate(b"\n")


def test_peak_begins_anew() -> None:
    me = Processes([os.getpid()])
    ballast = bytearray(os.urandom(1 << 20)) * 40
    del ballast
    before = me.memory()
    me.reset_peak()
    after = me.memory()
    assert before.peak >= before.now > 1 << 20
    assert after.peak < before.peak


def test_process_that_is_not_there() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    gone = Processes([child.pid])
    child.wait()
    with pytest.raises(Unreachable, match=f"process {child.pid} has ended"):
        gone.cpu()
    missing = f"the process {child.pid} does not exist; give a process of the broker"
    with pytest.raises(Unreachable, match=missing):
        Processes([child.pid])
