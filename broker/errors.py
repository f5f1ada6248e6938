"""What the core refuses, and with which words; the front ends map the kinds to their codes."""

from __future__ import annotations


class BrokerError(Exception):
    """Base of all refusals. The text names the thing refused."""


class NotFound(BrokerError):
    """A queue or exchange of that name does not exist."""


class AccessRefused(BrokerError):
    """The identity may not do this, or nobody may."""


class PreconditionFailed(BrokerError):
    """It exists but differs, or the arguments do not fit."""


class ResourceLocked(BrokerError):
    """The queue is exclusive to another connection."""


class NotAllowed(BrokerError):
    """The rules of this connection, or a limit of the broker, forbid it."""


def inequivalent(
    argument: str, thing: str, vhost: str, received: object, current: object
) -> PreconditionFailed:
    """A redeclaration that differs in one point; with RabbitMQ's wording, which clients parse."""
    if (
        isinstance(received, Typed)
        and isinstance(current, Typed)
        and received.value is not None
        and current.value is not None
    ):
        received, current = received.value, current.value
    return PreconditionFailed(
        f"inequivalent arg '{argument}' for {thing} in vhost '{vhost}': received {_value(received)} but current is {_value(current)}"
    )


def _value(value: object) -> str:
    if isinstance(value, Typed):
        return value.text
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


class Typed:
    """An argument's value as RabbitMQ names it: ``the value '7' of type 'signedint'``, or ``none``."""

    def __init__(self, value: object) -> None:
        self.value = value
        if value is None:
            self.text = "none"
        else:
            kind = (
                "bool"
                if isinstance(value, bool)
                else "signedint"
                if isinstance(value, int)
                else "longstr"
            )
            self.text = f"the value '{str(value).lower() if isinstance(value, bool) else value}' of type '{kind}'"
