"""Run the build of the wheel and print its stage (`build_progress.py LOG COMMAND...`).

All output of COMMAND goes to the file LOG. setup.py prints a line such as "stage: C compiler: 3 of
15 files" when a stage begins or advances, and this program prints a line for each new stage. On a
terminal, it also prints the stage every INTERVAL seconds, with the time since the start. The exit
code is that of COMMAND.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

#: Seconds between two lines on a terminal.
INTERVAL: Final = 10.0
#: The stage before the first line of setup.py.
FIRST: Final = "pip installs the packages of the build"
#: A line of setup.py, which pip indents: the name of the stage, and how far the stage is.
STAGE: Final = re.compile(r"\s*stage: ([^:\n]+)(?:: (.+))?\n")


class StageReport:
    """The stage of a build, and the lines about it.

    `repeats` is True if the stage is printed again every INTERVAL seconds. All times are seconds of
    one monotonic clock.
    """

    def __init__(self, repeats: bool, start: float) -> None:
        self.repeats = repeats
        self.start = self.last = start
        self.stage, self.detail = FIRST, ""

    def read(self, line: str, now: float) -> list[str]:
        """Return the lines to print after one line of the build's output."""
        if (stage := STAGE.fullmatch(line)) is None:
            return self.elapse(now)
        known, self.stage, self.detail = self.stage, stage[1], stage[2] or ""
        if self.stage == known:
            return self.elapse(now)
        self.last = now
        return [self.stage]

    def elapse(self, now: float) -> list[str]:
        """Return the lines to print at the time `now`; none if the interval is not over yet."""
        if not self.repeats or now < self.last + INTERVAL:
            return []
        self.last = now
        text = f"{self.stage}: {self.detail}" if self.detail else self.stage
        return [f"{text} ({now - self.start:.0f} s)"]


def arriving(stream: Iterable[str], seconds: float) -> Iterator[str]:
    """Yield each line of a stream when it arrives, and "" after `seconds` without a line."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read_all() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    Thread(target=read_all, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=seconds)
        except Empty:
            yield ""
            continue
        if line is None:
            return
        yield line


def main(log: Path, command: list[str]) -> int:
    """Run the command, write its output to `log`, print the stages, and return the exit code."""
    progress = StageReport(sys.stdout.isatty(), time.monotonic())
    print(f"trellis: {FIRST}", flush=True)
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as build,
    ):
        assert build.stdout is not None
        for line in arriving(build.stdout, seconds=1.0):
            file.write(line)
            for text in progress.read(line, time.monotonic()):
                print(f"trellis: {text}", flush=True)
    return build.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
