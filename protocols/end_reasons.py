"""The reasons for which the broker closes a connection on its own initiative."""

from __future__ import annotations

from typing import Final

#: Reasons for which the broker closes a connection, as counted in the metrics. EXPELLED: by an
#: operator or after a change of permissions; TOO_FAST: a client above its rate limit; SHUTDOWN: the
#: end of the broker process; STANDBY: the node is a standby (redirect.py); INTERNAL_ERROR: an
#: unexpected exception while the broker handled the client's input.
EXPELLED: Final = "expelled"
TOO_FAST: Final = "too_fast"
SHUTDOWN: Final = "shutdown"
STANDBY: Final = "standby"
INTERNAL_ERROR: Final = "internal_error"
#: The text that the client gets with INTERNAL_ERROR.
INTERNAL_ERROR_TEXT: Final = (
    "unexpected error in the broker, whose log has the details: connect again, and check which of "
    "the last requests took effect"
)
