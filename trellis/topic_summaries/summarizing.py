"""Makes the missing summaries in directories of streams; the child process runs this module."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Final

from broker.store.disk import RealDisk, StoreError
from broker.stream.segment_topics import without_summary, write_summary

#: The priority of the process is lowered by this number, so it gives way to all other processes.
NICE: Final = 19


def summarize(directories: Iterable[str], go_on: Callable[[], bool] = lambda: True) -> int:
    """Write the missing summaries of all full segments in directories of streams.

    Return the number of summaries that were written. `go_on` is called before each segment; if it
    returns False, no further summary is written. Three kinds of segments are skipped: segments that
    are removed meanwhile, segments that cannot be read, and segments whose summary another process
    writes, because a process of a killed broker may still run. Raises OSError if a summary cannot
    be written.
    """
    disk = RealDisk()
    written = 0
    for directory in directories:
        try:
            names = disk.list(directory)
        except OSError:
            continue  # The stream was deleted meanwhile.
        for name in without_summary(names):
            if not go_on():
                return written
            try:
                written += write_summary(disk, f"{directory}/{name}")
            except (FileNotFoundError, FileExistsError, StoreError):
                continue
    return written


def main(descriptor: int) -> None:
    """Read directories from the inherited socket `descriptor`, and write their summaries."""
    os.nice(NICE)
    broker = os.getppid()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as sent:
        directories = [os.fsdecode(name) for name in sent.read().split(b"\0") if name]
        # The broker waits until this process closes the connection.
        try:
            summarize(directories, lambda: os.getppid() == broker)
        except OSError as error:
            sys.exit(
                f"trellis: cannot write the summary of a segment's topics: {error}; check the free "
                "space and the permissions of the data directory"
            )
