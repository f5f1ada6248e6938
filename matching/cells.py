"""One reference that several threads read and exchange atomically.

All that the concurrent matchers share goes through such cells, and nothing else in them may change
once others can see it. So whoever gives them another kind of cell sees, and can delay or refuse,
every step that matters: the tests do.

A cell is exchanged by identity, not equality: it must hold that very object. `AtomicCell` is one on
the package cereggii, which is right without a global interpreter lock too.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr

try:
    from cereggii import AtomicRef
except ImportError as error:  # pragma: no cover - the tests do this in a process of its own
    raise ImportError(
        "the concurrent matchers need the package cereggii: pip install 'trellis-broker[concurrent]'"
    ) from error

T = TypeVar("T")


@mypyc_attr(allow_interpreted_subclasses=True)
class Cell(Generic[T]):
    """What the concurrent matchers ask of a cell."""

    def __init__(self, value: T) -> None:
        """A cell that holds the value."""

    def get(self) -> T:
        """What it holds."""
        raise NotImplementedError

    def compare_and_set(self, expected: T, desired: T) -> bool:
        """Hold the desired instead of the expected object; False, and no change, when it holds
        another.
        """
        raise NotImplementedError


class AtomicCell(Cell[T]):
    """A cell on `cereggii.AtomicRef`."""

    __slots__ = ("_reference",)

    def __init__(self, value: T) -> None:
        self._reference: Any = AtomicRef(value)

    def get(self) -> T:
        value: T = self._reference.get()
        return value

    def compare_and_set(self, expected: T, desired: T) -> bool:
        exchanged: bool = self._reference.compare_and_set(expected, desired)
        return exchanged
