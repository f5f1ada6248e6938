"""Errors of `trellis bench load`: one line with connection, problem, and expectation or remedy."""

from __future__ import annotations


class BenchError(Exception):
    """A workload failed. Other workloads can still run."""


class Unreachable(BenchError):
    """No workload can run: no broker answers, the login is refused, or --pid names no process."""


class WrongAnswer(BenchError):
    """The broker lost, changed, repeated or reordered a message or a confirm."""

    def __init__(self, where: str, subject: str, expected: object, got: object) -> None:
        super().__init__(f"wrong answer at {where}: {subject}: expected {expected}, got {got}")
