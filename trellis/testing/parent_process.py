"""Ends a child process together with its parent, also if the parent is killed."""

from __future__ import annotations

import ctypes
import signal
from typing import Final

#: prctl: the signal that a process gets when the thread that created it ends (Linux).
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Make Linux kill this process when its parent ends. Call it in the child.

    The setting stays when the process runs another program, and does not hold for its children.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
