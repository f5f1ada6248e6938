"""A substitute for mypy_extensions, so that `matching` also runs from a zip file without that
package.

Only the compiler mypyc needs the real package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[T], T]:
    """Return a class decorator that does nothing."""
    return _unchanged


def _unchanged(decorated: T) -> T:
    return decorated
