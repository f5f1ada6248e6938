"""The limit on the nesting of tables, objects and lists in the values that clients send.

Values are encoded recursively, so a value that is nested without a bound would exhaust the stack.
"""

from __future__ import annotations

from typing import Final

#: Largest number of levels of tables, objects and lists inside each other.
NESTING_MAX: Final = 100


def is_nested_too_deep(value: object, levels: int = NESTING_MAX) -> bool:
    """True if tables, objects and lists are nested in the value more than `levels` levels deep."""
    if not isinstance(value, (dict, list)):
        return False
    if levels == 0:
        return True
    for item in value.values() if isinstance(value, dict) else value:
        if is_nested_too_deep(item, levels - 1):
            return True
    return False
