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
#: The reasons with which the broker ends a connection without a last packet, because the client has
#: broken a limit, and the note of the log line about this. A client that was silent for longer than
#: its keep-alive or heartbeat interval has broken no limit: it is gone, and no line is logged.
BROKEN_LIMITS: Final = {
    "handshake_timeout": "the client has not logged in within the time limit limits.handshake",
    "too_much_before_login": "the client has sent more input than a client may send before its "
    "login",
    "incomplete_message": "the memory alarm is on, and the client has not completed a large "
    "message in time: see limits.memory",
    "reads_nothing": "the client does not read the answers to its requests",
}
#: The text that the client gets with INTERNAL_ERROR.
INTERNAL_ERROR_TEXT: Final = (
    "unexpected error in the broker, whose log has the details: connect again, and check which of "
    "the last requests took effect"
)
