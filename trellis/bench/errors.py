"""Errors of `trellis bench load`: one line with connection, problem, and expectation or remedy."""

from __future__ import annotations


class BenchError(Exception):
    """A failure of one workload. Other workloads can still run."""


class Unreachable(BenchError):
    """A failure after which no workload can run.

    No broker answers, the login is refused, or --pid names no process.
    """


class WrongAnswer(BenchError):
    """A wrong answer of the broker: a lost, changed, repeated or reordered message or confirm."""

    def __init__(self, where: str, subject: str, expected: object, got: object) -> None:
        super().__init__(f"wrong answer at {where}: {subject}: expected {expected}, got {got}")
