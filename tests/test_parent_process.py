"""Tests that helper programs of the tests end when the process of the tests is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker import ROOT
from trellis.parent_process import end_with_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux ends such programs")

#: Longest wait for the end of a program in seconds.
PATIENCE: Final = 20.0
PLAIN: Final = """
from subprocess import Popen
from trellis.parent_process import end_with_parent
program = Popen(["sleep", "600"], preexec_fn=end_with_parent)
"""
#: Code that starts a helper program, by the name of the program. The program must end with the
#: process that runs the code. `directory` is an empty directory.
STARTS: Final = {
    "kfake": "from tests.cluster.programs import Kfake; program = Kfake(); program.pause()",
    "kafka": "from tests.cluster.programs import KafkaNodes; program = KafkaNodes(directory, 1)",
    "rabbitmq": "from tests.rabbitmq import RabbitMq; program = RabbitMq(directory)",
}


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of the children of a process, of their children, and so on."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def expect_end(programs: list[int]) -> None:
    """Check that processes end. `programs` are their pidfds, which this function closes."""
    assert programs
    left = set(programs)
    ended = select.poll()
    for program in programs:
        ended.register(program, select.POLLIN)
    while left and (ready := ended.poll(PATIENCE * 1_000)):
        for program, _ in ready:
            ended.unregister(program)
            left.remove(program)
    for program in left:
        signal.pidfd_send_signal(program, signal.SIGKILL)
    for program in programs:
        os.close(program)
    assert not left, f"{len(left)} of {len(programs)} processes did not end"


def kill_after(start: str, directory: Path) -> None:
    """Kill a process after it has started a helper program; check that the program ends, too."""
    code = (
        f"import sys; from pathlib import Path; directory = Path(sys.argv[1])\n{start}\n"
        "print('started', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        preexec_fn=end_with_parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        assert "started\n" in iter(parent.stdout.readline, "")
        programs = list(map(os.pidfd_open, descendants(parent.pid)))
        parent.kill()
    expect_end(programs)


def test_a_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    kill_after(PLAIN, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", STARTS)
def test_a_helper_program_of_tests_ends_with_the_tests(name: str, tmp_path: Path) -> None:
    kill_after(STARTS[name], tmp_path)
