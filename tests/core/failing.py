"""Functions that fail at some of their calls, and a helper that completes the work of a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients import World


class Failing:
    """A replacement of the function `name` of `owner`, which fails at some of its calls.

    `at` are the numbers of these calls; 1 is the first. All other calls reach the real function.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *at: int) -> None:
        real: Callable[..., Any] = getattr(owner, name)
        self.calls = 0
        self.failures = 0

        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls in at:
                self.failures += 1
                raise RuntimeError(f"call {self.calls} fails")
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)


def finish(world: World, *work: Callable[[], object]) -> int:
    """Call each function in `work`, and run turns until the broker has no work left.

    Return the number of RuntimeErrors that these calls and turns raised.
    """
    failures = 0
    for step in work:
        try:
            step()
        except RuntimeError:
            failures += 1
    for _ in range(1_000):
        if world.broker.agenda.idle:
            return failures
        try:
            world.turn()
        except RuntimeError:
            failures += 1
    raise AssertionError("no end")
