"""Atomic references: values that several threads read and replace without a lock.

All state that threads share in the concurrent matchers is in these cells. An object in a cell is
never changed; another object replaces it. Tests substitute their own kind of cell to observe, delay
or refuse every access.

`compare_and_set` compares by identity, not equality. `AtomicCell` is implemented with the package
cereggii, which is correct also on Python builds without a global interpreter lock.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr

try:
    from cereggii import AtomicRef
except ImportError as error:  # pragma: no cover - tested in a separate process
    raise ImportError(
        "the concurrent matchers need the package cereggii: "
        "pip install 'trellis-broker[concurrent]'"
    ) from error

T = TypeVar("T")


@mypyc_attr(allow_interpreted_subclasses=True)
class Cell(Generic[T]):
    """The interface of an atomic reference."""

    def __init__(self, value: T) -> None:
        """Create a cell that holds the value."""

    def get(self) -> T:
        """Return the object that the cell holds at present."""
        raise NotImplementedError

    def compare_and_set(self, expected: T, desired: T) -> bool:
        """Replace the expected object by the desired one and return True.

        Return False and change nothing if the cell holds another object.
        """
        raise NotImplementedError


class AtomicCell(Cell[T]):
    """A cell implemented with `cereggii.AtomicRef`."""

    __slots__ = ("_reference",)

    def __init__(self, value: T) -> None:
        self._reference: Any = AtomicRef(value)

    def get(self) -> T:
        value: T = self._reference.get()
        return value

    def compare_and_set(self, expected: T, desired: T) -> bool:
        exchanged: bool = self._reference.compare_and_set(expected, desired)
        return exchanged
