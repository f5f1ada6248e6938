"""Errors of the core; the protocol front ends map each class to a code of their protocol."""

from __future__ import annotations

from typing import Final

#: The kinds of a missing object (NotFound.kind).
QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"


class BrokerError(Exception):
    """Raised if the core refuses a request. The text names the object and the reason."""

    def copy(self) -> BrokerError:
        """Return an equal error without the tracebacks that a raised error collects.

        A class whose `__init__` takes other arguments than the text overrides this method.
        """
        return type(self)(str(self))


class NotFound(BrokerError):
    """Raised if the queue or exchange that a request names does not exist.

    `kind` is QUEUE or EXCHANGE, `name` names the missing object, and `vhost` its virtual host. All
    are "" if an object of another kind is missing.
    """

    def __init__(self, text: str, kind: str = "", name: str = "", vhost: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.name = name
        self.vhost = vhost

    def copy(self) -> BrokerError:
        return NotFound(str(self), self.kind, self.name, self.vhost)


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
        self.thing = thing
        self.reason = reason

    def copy(self) -> BrokerError:
        return InvalidArgument(self.argument, self.thing, self.reason)


class LimitExceeded(PreconditionFailed):
    """Raised if a request would exceed a limit of the broker on what one client may use."""


class ResourceLocked(BrokerError):
    """Raised if a queue is exclusive to another connection, or belongs to an MQTT session."""


class NotAllowed(BrokerError):
    """Raised if a request violates a rule of its connection, or a limit of the broker."""


def no_queue(name: str, vhost: str) -> NotFound:
    """Return the error about a queue that does not exist in a virtual host."""
    return NotFound(f"no queue '{name}' in vhost '{vhost}'", QUEUE, name, vhost)


def no_exchange(name: str, vhost: str) -> NotFound:
    """Return the error about an exchange that does not exist in a virtual host."""
    return NotFound(f"no exchange '{name}' in vhost '{vhost}'", EXCHANGE, name, vhost)


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
