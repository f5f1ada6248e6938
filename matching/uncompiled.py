"""Stands in for mypy_extensions, which only compiling needs: matching/ also runs from a zip without
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[T], T]:
    """A class decorator that does nothing."""
    return _unchanged


def _unchanged(decorated: T) -> T:
    return decorated
