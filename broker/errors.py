"""Errors of the core; the protocol front ends map each class to a code of their protocol."""

from __future__ import annotations


class BrokerError(Exception):
    """Raised if the core refuses a request. The text names the object and the reason."""


class NotFound(BrokerError):
    """Raised if the queue or exchange that a request names does not exist."""


class AccessRefused(BrokerError):
    """Raised if the user lacks a permission, or a request is forbidden to all clients."""


class PreconditionFailed(BrokerError):
    """Raised if an argument is invalid, or the state of the object does not permit the request.

    For example, the object exists with other properties, or the request says `if_unused` and the
    object has consumers.
    """


class InvalidArgument(PreconditionFailed):
    """Raised if an argument of a queue has an invalid value. The text has RabbitMQ's wording.

    `argument` is the name of the argument. `thing` is a text that names the queue, such as `for
    queue 'q' in vhost '/'`. `reason` says why the value is invalid.
    """

    def __init__(self, argument: str, thing: str, reason: str) -> None:
        super().__init__(f"invalid arg '{argument}' {thing}: {reason}")
        self.argument = argument
        self.reason = reason


class LimitExceeded(PreconditionFailed):
    """Raised if a request would exceed a limit of the broker on what one client may use."""


class ResourceLocked(BrokerError):
    """Raised if a queue is exclusive to another connection, or belongs to an MQTT session."""


class NotAllowed(BrokerError):
    """Raised if a request violates a rule of its connection, or a limit of the broker."""


def inequivalent(
    argument: str, thing: str, vhost: str, received: object, current: object
) -> PreconditionFailed:
    """Return the error for a declaration of an existing object with another value of `argument`.

    `thing` names the object, `received` is the declared value, `current` the object's value. The
    text has RabbitMQ's wording, because clients parse it.
    """
    if (
        isinstance(received, Typed)
        and isinstance(current, Typed)
        and received.value is not None
        and current.value is not None
    ):
        received, current = received.value, current.value
    return PreconditionFailed(
        f"inequivalent arg '{argument}' for {thing} in vhost '{vhost}': "
        f"received {_value(received)} but current is {_value(current)}"
    )


def _value(value: object) -> str:
    if isinstance(value, Typed):
        return value.text
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


class Typed:
    """The value of an argument, with its text in RabbitMQ's error messages.

    The text is, for example, ``the value '7' of type 'signedint'``, or ``none``.
    """

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
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self.text = f"the value '{text}' of type '{kind}'"
