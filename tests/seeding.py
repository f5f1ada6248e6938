"""Makes Hypothesis need less CPU time for random numbers, in the runs with fixed examples.

Around each example, Hypothesis saves the states of all random number generators, seeds them, and
restores their states. It also compares two states of the module `random` around each value that a
strategy draws, and warns if the strategy used that module. Together, this takes 0.3 ms per example.
Here, `random` has the same seed at the start of each example, and a seed from the operating system
after it; no test uses the generator of numpy.

`make test-random` runs without this module, so that Hypothesis can still warn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Final


def _seeder_and_restorer(seed: int = 0) -> tuple[Callable[[], None], Callable[[], None]]:
    return lambda: random.seed(seed), random.seed


def _unchecked(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


_REPLACED: Final = (
    ("hypothesis.internal.entropy", "get_seeder_and_restorer", _seeder_and_restorer),
    ("hypothesis.control", "deprecate_random_in_strategy", _unchecked),
    ("hypothesis.strategies._internal.core", "deprecate_random_in_strategy", _unchecked),
)


def install() -> None:
    """Replace functions of Hypothesis by the faster functions of this module.

    The names of these functions are not public. A name that this version of Hypothesis does not
    have is skipped.
    """
    for module, name, replacement in _REPLACED:
        if hasattr(import_module(module), name):
            setattr(import_module(module), name, replacement)
