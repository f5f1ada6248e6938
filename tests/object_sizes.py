"""Adds up the memory of all objects that one object refers to, directly or through others."""

from __future__ import annotations

import gc
import sys
import types
from typing import Final

#: Kinds of objects that belong to the program and not to its data: the walk does not enter them.
_PROGRAM: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.CodeType,
    types.FrameType,
)


def reachable_bytes(root: object) -> int:
    """Return the size in bytes of `root` and of all data that it refers to.

    The result includes the headers of the garbage collector. It excludes memory that the allocator
    leaves unused between objects, and memory that objects of C libraries allocate for themselves.
    """
    known = {id(root): root}
    waiting = [root]
    total = 0
    while waiting:
        one = waiting.pop()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in known and not isinstance(other, _PROGRAM):
                known[id(other)] = other
                waiting.append(other)
    return total
