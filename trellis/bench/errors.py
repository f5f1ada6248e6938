"""What can go wrong in a bench: every error is one line that says what, where, and what to do or
what was expected.
"""

from __future__ import annotations


class BenchError(Exception):
    """One workload cannot be done; others may."""


class Unreachable(BenchError):
    """No broker answers there, or it refuses the login: no workload can be done."""


class WrongAnswer(BenchError):
    """The broker lost, changed, repeated or reordered something."""

    def __init__(self, where: str, what: str, expected: object, got: object) -> None:
        super().__init__(f"wrong answer at {where}: {what}: expected {expected}, got {got}")
