"""Errors of `trellis bench load`: one line with connection, problem, and expectation or remedy."""

from __future__ import annotations


class BenchError(Exception):
    """Raised if one workload fails. Other workloads can still run."""


class Unreachable(BenchError):
    """Raised if no workload can run.

    For example, no broker answers, the broker refuses the login, or --pid names no process.
    """


class WrongAnswer(BenchError):
    """Raised if the broker loses, changes, repeats or reorders a message or a confirm."""

    def __init__(self, where: str, subject: str, expected: object, got: object) -> None:
        super().__init__(f"wrong answer at {where}: {subject}: expected {expected}, got {got}")
