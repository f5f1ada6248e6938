"""Ends a child process together with its parent, also if the parent is killed."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

#: prctl: the signal that a process gets when the thread that created it ends (Linux).
_PR_SET_PDEATHSIG: Final = 1
#: Loaded here, because a child of a process with threads must not load a library before it runs
#: another program.
_LIBRARY: Final = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Make Linux kill this process when its parent ends. Call it in the child.

    The setting stays when the process runs another program, so this function can be the
    `preexec_fn` of `subprocess.Popen`. Children of the process do not inherit the setting.

    Linux kills the process as soon as the thread that started it ends, even if the parent goes on.
    So only a thread that lives as long as the parent, such as its main thread, may start the
    process. Other systems have no such setting: there, the function does nothing.
    """
    if sys.platform == "linux":
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
