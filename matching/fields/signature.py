"""Signatures of criteria: 62 bits by which a search excludes most bindings without comparing
criteria.

Each criterion sets one bit, chosen by a hash of its name and value. A message has the bits of all
criteria that its headers meet. A binding whose signature has two bits that the message lacks fails
at least two of its criteria. Two criteria may share a bit, so any other binding may or may not
fail: its criteria must be compared.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from matching.fields.criteria import PRESENT, Criteria, Fields, token

#: Number of bits. With more, compiled code would not keep a signature in one machine word.
_BITS: Final = 62


def criteria_signature(criteria: Criteria) -> int:
    """Return the signature of a binding; 0 if one criterion is enough for it (x-match=any)."""
    bits = 0
    if not criteria.any:
        for name, wanted in criteria.wanted.items():
            bits |= _bit(name, wanted)
    return bits


def headers_signature(headers: Fields) -> int:
    """Return the bits of all criteria that the headers of a message meet."""
    bits = 0
    for name, value in headers.items():
        bits |= _bit(name, PRESENT) | _bit(name, token(value))
    return bits


def may_fail_once(criteria: int, headers: int) -> bool:
    """Return False if the signatures show that the message fails two criteria or more.

    `criteria` is the signature of a binding, `headers` the signature of a message's headers. The
    result True decides nothing: the criteria of the binding must be compared.
    """
    failing = criteria & ~headers
    return failing & (failing - 1) == 0


def _bit(name: str, wanted: Hashable) -> int:
    return 1 << hash((name, wanted)) % _BITS
