"""Errors of `trellis bench load`: one line with connection, problem, and expectation or remedy."""

from __future__ import annotations


class BenchError(Exception):
    """The failure of one workload. Other workloads can still run."""


class Unreachable(BenchError):
    """A failure of all workloads.

    No broker answers, the broker refuses the login, or --pid names no process.
    """


class WrongAnswer(BenchError):
    """A fault of the broker: it lost, changed, repeated or reordered a message or a confirm."""

    def __init__(self, where: str, subject: str, expected: object, got: object) -> None:
        super().__init__(f"wrong answer at {where}: {subject}: expected {expected}, got {got}")
