"""Errors of a bench, in one line: connection, problem, and the expected value or the remedy."""

from __future__ import annotations


class BenchError(Exception):
    """A failure of one workload; others can still run."""


class Unreachable(BenchError):
    """No broker answers, or it refuses the login: no workload can run."""


class WrongAnswer(BenchError):
    """The broker lost, changed, repeated or reordered a message or an acknowledgement."""

    def __init__(self, where: str, subject: str, expected: object, got: object) -> None:
        super().__init__(f"wrong answer at {where}: {subject}: expected {expected}, got {got}")
