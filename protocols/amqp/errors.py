"""Errors for AMQP clients: a soft error closes the channel, a hard error closes the connection.

The rule is in AMQP 0-9-1, section 4.2.8.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.errors import (
    AccessRefused,
    BrokerError,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from protocols.refusal_fields import cause_of

_NAMES: Final = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
_HARD: Final = frozenset((320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541))
_CODES: Final[dict[type[BrokerError], int]] = {
    AccessRefused: 403,
    NotFound: 404,
    ResourceLocked: 405,
    PreconditionFailed: 406,
    InvalidArgument: 406,
    LimitExceeded: 406,
    NotAllowed: 530,
}


class AmqpError(Exception):
    """Raised if a method of the client fails: the client gets the reply code `code` and `text`.

    If `hard` is True, the error closes the connection, else the channel.
    """

    def __init__(self, code: int, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code
        #: True if the log has a line about the refusal already.
        self.logged = False
        #: The cause of the refusal, for its log line (refusal_fields.py); "" for other causes.
        self.cause = ""
        self.text = f"{_NAMES[code]} - {explanation}".encode(errors="replace")[:255].decode(
            errors="ignore"
        )
        self.hard = code in _HARD


def from_broker(error: BrokerError) -> AmqpError:
    """Return the AMQP error, with its reply code, for an error of the broker core."""
    refusal = AmqpError(_CODES[type(error)], str(error))
    refusal.cause = cause_of(error)
    return refusal


def unknown_tag(number: i64) -> AmqpError:
    """Return the error for a delivery tag under which no delivery is outstanding."""
    return AmqpError(406, f"unknown delivery tag {int(number) & 0xFFFF_FFFF_FFFF_FFFF}")
