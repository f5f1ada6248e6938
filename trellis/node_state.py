"""The state that a node of a cluster tells `trellis health` in its answer to `GET /readyz`.

following, claiming     a standby, which waits until it may own the replicated log
opening                 the owner of the log, before it is ready
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = "not ready: this node is "
_STANDBY: Final = ("following", "claiming")


def readiness_text(state: str) -> str:
    """Return the body of `GET /readyz` of a node that is not ready: a text with its state."""
    return _TEXT + state


def standby_state(text: str) -> str:
    """Return the state of a standby, from the body of its answer to `GET /readyz`.

    `readiness_text` has made the body. Return "" if the node is not a standby.
    """
    state = text.removeprefix(_TEXT)
    return state if state in _STANDBY and text.startswith(_TEXT) else ""
