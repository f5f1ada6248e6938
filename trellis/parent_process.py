"""Ends a child process together with its parent, also if the parent is killed."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

#: prctl: the signal that a process gets when the thread that created it ends (Linux).
_PR_SET_PDEATHSIG: Final = 1
#: The C library. The library is loaded with this module, because a child of a process with threads
#: must not load a library before it runs another program.
_LIBRARY: Final = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Make Linux kill the calling process when its parent process ends.

    The setting stays when the process runs another program, so this function can be the
    `preexec_fn` of `subprocess.Popen`. Children of the process do not inherit the setting.

    Linux kills the process as soon as the thread that started the process ends, even if other
    threads of the parent process continue. So only a thread that lives as long as the parent
    process, such as its main thread, may start the process. On other systems the function does
    nothing, because they have no such setting.
    """
    if sys.platform == "linux":
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
