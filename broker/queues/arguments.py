"""Queue arguments: which there are, what they may be, and what a queue makes of them together with
its policy.

argument                      value                                        compared when a queue is
declared again x-message-ttl                 ms, from 0                                   yes
x-expires                     ms, from 1                                   yes
x-max-length(-bytes)          from 0                                       yes
x-overflow                    drop-head, reject-publish(-dlx)              yes
x-dead-letter-exchange        a name; -routing-key only beside it          yes
x-max-priority                0 to 255                                     yes
x-single-active-consumer      a boolean                                    yes
x-delivery-limit              from 0; -1 (or less) is none                 yes
x-queue-type                  classic, quorum or stream; none is classic   yes
x-max-age                     of a stream: 7D, 12h, ...                    yes
x-stream-max-segment-size-bytes   of a stream                              yes
x-journal                     of a stream: it gets all that is published   yes
x-queue-mode                  default or lazy: messages wait as they do    no
others                        anything                                     no
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed

#: The largest number that an argument may be.
NUMBER_MAX: Final = 1 << 50
#: The highest priority that a queue may know.
PRIORITY_MAX: Final = 255
#: Octets of the longest name.
NAME_BYTES: Final = 255
#: How often a queue of type quorum delivers a message again, if nothing else is said (as RabbitMQ
#: 4).
DELIVERY_LIMIT: Final = 20
#: A length that no queue reaches.
UNLIMITED: Final[i64] = 1 << 60

#: Octets of a segment of a stream, if nothing else is said, and at least.
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_BYTES_MIN: Final = 4_096
#: Seconds of the units in which an age is given, as RabbitMQ does.
_UNITS: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}

#: Numbers, with the least that each may be.
_NUMBERS: Final = {
    "x-message-ttl": 0,
    "x-expires": 1,
    "x-max-length": 0,
    "x-max-length-bytes": 0,
    "x-max-priority": 0,
    "x-delivery-limit": -NUMBER_MAX,
    "x-stream-max-segment-size-bytes": SEGMENT_BYTES_MIN,
}
_STRINGS: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
_CHOICES: Final = {
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-type": ("classic", "quorum", "stream"),
}
_SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"
_MAX_AGE: Final = "x-max-age"
_JOURNAL: Final = "x-journal"
#: What only streams know, and what they know of the rest.
_STREAM_ONLY: Final = ("x-stream-max-segment-size-bytes", _MAX_AGE, _JOURNAL)
_STREAM_ARGUMENTS: Final = (
    *_STREAM_ONLY,
    "x-queue-type",
    "x-max-length-bytes",
    _SINGLE_ACTIVE_CONSUMER,
)
_COMPARED: Final = (
    *_NUMBERS,
    *_STRINGS,
    "x-overflow",
    "x-queue-type",
    _SINGLE_ACTIVE_CONSUMER,
    _MAX_AGE,
    _JOURNAL,
)

#: What a policy may say of queues, as the argument of the same meaning.
BY_POLICY: Final = {
    "message-ttl": "x-message-ttl",
    "expires": "x-expires",
    "max-length": "x-max-length",
    "max-length-bytes": "x-max-length-bytes",
    "overflow": "x-overflow",
    "dead-letter-exchange": "x-dead-letter-exchange",
    "dead-letter-routing-key": "x-dead-letter-routing-key",
    "delivery-limit": "x-delivery-limit",
    "max-age": _MAX_AGE,
    "stream-max-segment-size-bytes": "x-stream-max-segment-size-bytes",
}

_AGES: Final = re.compile(r"(\d{1,9})([YMDhms])")

#: What no queue argument says.
EMPTY: Final[Mapping[str, object]] = {}


class QueueArguments:
    """How a queue was declared, checked, and what holds for it. Raises PreconditionFailed.

    Of two numbers, its own and the policy's, the lower holds; of two words, its own.
    """

    def __init__(
        self,
        name: str,
        vhost: str,
        arguments: Mapping[str, object],
        policy: Mapping[str, object] = EMPTY,
    ) -> None:
        thing = f"for queue '{name}' in vhost '{vhost}'"
        _check(thing, arguments)
        _check_type(thing, arguments)
        #: Everything that was said, and what of it counts when the queue is declared again.
        self.arguments = arguments
        self.given = {
            argument: value
            for argument, value in arguments.items()
            if argument in _COMPARED and not (argument == "x-queue-type" and value == "classic")
        }
        self.quorum = arguments.get("x-queue-type") == "quorum"
        self.stream = arguments.get("x-queue-type") == "stream"
        #: Of a stream: ms that its rows are kept (-1: for ever), octets of a segment, and whether
        #: it gets all that is published.
        self.max_age: i64 = min(
            (parse_age(given[_MAX_AGE]) for given in (arguments, policy) if _MAX_AGE in given),
            default=-1,
        )
        self.segment_bytes: i64 = _number(
            arguments.get(_STREAM_ONLY[0], policy.get(_STREAM_ONLY[0], SEGMENT_BYTES))
        )
        self.journal = arguments.get(_JOURNAL) is True
        self.single_active_consumer = arguments.get(_SINGLE_ACTIVE_CONSUMER) is True
        self.max_priority = _number(arguments.get("x-max-priority"))
        self.ttl: i64 = _lowest(arguments, policy, "x-message-ttl")
        self.expires: i64 = _lowest(arguments, policy, "x-expires")
        self.max_length: i64 = _upper_bound(arguments, policy, "x-max-length")
        self.max_bytes: i64 = _upper_bound(arguments, policy, "x-max-length-bytes")
        self.delivery_limit: i64 = _delivery_limit(arguments, policy, self.quorum)
        overflow = _string(arguments, policy, "x-overflow")
        self.reject_publish = overflow in ("reject-publish", "reject-publish-dlx")
        self.dead_letter_refused = overflow == "reject-publish-dlx"
        self.dead_letter_exchange = _string(arguments, policy, "x-dead-letter-exchange")
        self.dead_letter_key = _string(arguments, policy, "x-dead-letter-routing-key")
        if "x-dead-letter-routing-key" in arguments and self.dead_letter_exchange is None:
            raise PreconditionFailed(
                f"invalid arg 'x-dead-letter-routing-key' {thing}: there is no 'x-dead-letter-exchange'"
            )

    @property
    def ranked(self) -> bool:
        """Whether some messages go before others."""
        return self.max_priority > 0

    @property
    def needs_only_plain_queue(self) -> bool:
        """Whether a plain queue does all this."""
        return (
            self.ttl < 0
            and self.expires < 0
            and self.max_length == UNLIMITED
            and self.max_bytes == UNLIMITED
            and not self.quorum
            and self.delivery_limit < 0
            and self.dead_letter_exchange is None
            and not self.ranked
        )


def _check(thing: str, arguments: Mapping[str, object]) -> None:
    for argument, least in _NUMBERS.items():
        value = arguments.get(argument, least)
        if not isinstance(value, int) or isinstance(value, bool):
            raise PreconditionFailed(f"invalid arg '{argument}' {thing}: not a number")
        if value < least:
            raise PreconditionFailed(f"invalid arg '{argument}' {thing}: {value} is too small")
        if value > (PRIORITY_MAX if argument == "x-max-priority" else NUMBER_MAX):
            raise PreconditionFailed(f"invalid arg '{argument}' {thing}: {value} is too large")
    for argument in _STRINGS:
        text = arguments.get(argument, "")
        if not isinstance(text, str):
            raise PreconditionFailed(f"invalid arg '{argument}' {thing}: not a text")
        if len(text.encode()) > NAME_BYTES:
            raise PreconditionFailed(
                f"invalid arg '{argument}' {thing}: longer than {NAME_BYTES} octets"
            )
    for argument, words in _CHOICES.items():
        word = arguments.get(argument, words[0])
        if not isinstance(word, str):
            raise PreconditionFailed(f"invalid arg '{argument}' {thing}: not a text")
        if word not in words:
            raise PreconditionFailed(
                f"invalid arg '{argument}' {thing}: '{word}' is none of {', '.join(words)}"
            )
    age = arguments.get(_MAX_AGE)
    if age is not None and parse_age(age) < 0:
        raise PreconditionFailed(
            f"invalid arg '{_MAX_AGE}' {thing}: {age!r} is no age such as '7D' (Y, M, D, h, m, s)"
        )
    if not isinstance(arguments.get(_JOURNAL, False), bool):
        raise PreconditionFailed(f"invalid arg '{_JOURNAL}' {thing}: not a boolean")
    if not isinstance(arguments.get(_SINGLE_ACTIVE_CONSUMER, False), bool):
        raise PreconditionFailed(f"invalid arg '{_SINGLE_ACTIVE_CONSUMER}' {thing}: not a boolean")


def parse_age(age: object) -> i64:
    """Milliseconds of `7D` and the like; -1 for what is none."""
    found = _AGES.fullmatch(age) if isinstance(age, str) else None
    return i64(int(found[1]) * _UNITS[found[2]] * 1000) if found is not None else -1


def _check_type(thing: str, arguments: Mapping[str, object]) -> None:
    """Every type of queue has arguments that it does not know. Raises PreconditionFailed."""
    kind = arguments.get("x-queue-type", "classic")
    for argument in _COMPARED:
        if argument in arguments and (
            argument not in _STREAM_ARGUMENTS if kind == "stream" else argument in _STREAM_ONLY
        ):
            raise PreconditionFailed(
                f"invalid arg '{argument}' {thing} of queue type rabbit_{kind}_queue"
            )


def check_durable_type(
    name: str, vhost: str, durable: bool, exclusive: bool, auto_delete: bool, kind: str
) -> None:
    """A queue of type quorum or stream lasts. Raises PreconditionFailed."""
    for wrong, what in (
        (not durable, "non-durable"),
        (exclusive, "exclusive-owner"),
        (auto_delete, "auto-delete"),
    ):
        if wrong:
            raise PreconditionFailed(
                f"invalid property '{what}' for queue '{name}' in vhost '{vhost}': its type is {kind}"
            )


def _delivery_limit(
    arguments: Mapping[str, object], policy: Mapping[str, object], quorum: bool
) -> i64:
    limits = [
        _number(given["x-delivery-limit"])
        for given in (arguments, policy)
        if "x-delivery-limit" in given
    ]
    if not limits:
        return DELIVERY_LIMIT if quorum else -1
    return min((limit for limit in limits if limit >= 0), default=-1)


def _lowest(arguments: Mapping[str, object], policy: Mapping[str, object], argument: str) -> i64:
    """-1 where nobody says anything."""
    return min(
        (_number(given[argument]) for given in (arguments, policy) if argument in given), default=-1
    )


def _upper_bound(
    arguments: Mapping[str, object], policy: Mapping[str, object], argument: str
) -> i64:
    bound = _lowest(arguments, policy, argument)
    return UNLIMITED if bound < 0 else bound


def _string(
    arguments: Mapping[str, object], policy: Mapping[str, object], argument: str
) -> str | None:
    value = arguments.get(argument, policy.get(argument))
    return value if isinstance(value, str) else None


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


#: Of a queue without arguments.
NO_ARGUMENTS: Final = QueueArguments("", "", EMPTY)
