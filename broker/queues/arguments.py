"""Arguments of a queue: their names, their permitted values, and their combination with a policy.

argument                          value                                       compared on
                                                                              redeclaration
x-message-ttl (TTL)               ms, from 0                                  yes
x-expires                         ms, from 1                                  yes
x-max-length, x-max-length-bytes  from 0                                      yes
x-overflow                        drop-head, reject-publish(-dlx)             yes
x-dead-letter-exchange            an exchange name                            yes
x-dead-letter-routing-key         needs x-dead-letter-exchange                yes
x-max-priority                    0 to 255                                    yes
x-single-active-consumer          a boolean                                   yes
x-delivery-limit                  from 0; -1 (or less): no limit              yes
x-delayed-retry-type              disabled, all, failed, returned             yes
x-delayed-retry-min, -max         ms, from 1                                  yes
x-consumer-timeout                ms, from 0 (no timeout)                     yes
x-message-deduplication           a boolean; not with x-max-priority          yes
x-queue-type                      classic (if absent), quorum or stream       yes
x-max-age                         of a stream: 7D, 12h, ...                   yes
x-stream-max-segment-size-bytes   of a stream                                 yes
x-journal                         of a stream: true or false                  yes
x-queue-mode                      default or lazy, without effect             no
others                            anything, without effect                    no
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.errors import InvalidArgument, PreconditionFailed

#: The largest value of an argument that is a number.
NUMBER_MAX: Final = 1 << 50
#: The highest value of `x-max-priority`.
PRIORITY_MAX: Final = 255
#: Size of the longest exchange name or routing key in bytes.
NAME_BYTES: Final = 255
#: Delivery limit of a queue of type quorum without `x-delivery-limit` (as RabbitMQ 4).
DELIVERY_LIMIT: Final = 20
#: A length that no queue reaches: the value of a limit that is not set.
UNLIMITED: Final[i64] = 1 << 60

#: Size of a stream's segment in bytes: the default, and the smallest that a client may choose.
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_BYTES_MIN: Final = 4_096
#: The units of an age such as `7D` (as in RabbitMQ), and their lengths in seconds.
_UNITS: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}

#: The arguments that are numbers, and the smallest permitted value of each.
_NUMBERS: Final = {
    "x-message-ttl": 0,
    "x-expires": 1,
    "x-max-length": 0,
    "x-max-length-bytes": 0,
    "x-max-priority": 0,
    "x-delivery-limit": -NUMBER_MAX,
    "x-consumer-timeout": 0,
    "x-delayed-retry-min": 1,
    "x-delayed-retry-max": 1,
    "x-stream-max-segment-size-bytes": SEGMENT_BYTES_MIN,
}
#: Names of the arguments about dead letters, and of the argument that makes a stream a journal.
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
JOURNAL: Final = "x-journal"
_STRINGS: Final = (DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY)
_CHOICES: Final = {
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-type": ("classic", "quorum", "stream"),
    "x-delayed-retry-type": ("disabled", "all", "failed", "returned"),
}
_SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"
#: The argument of a queue that deduplicates its messages.
DEDUPLICATION: Final = "x-message-deduplication"
_MAX_AGE: Final = "x-max-age"
#: The arguments that only streams accept. _STREAM_ARGUMENTS are all arguments that streams accept.
_STREAM_ONLY: Final = ("x-stream-max-segment-size-bytes", _MAX_AGE, JOURNAL)
_STREAM_ARGUMENTS: Final = (
    *_STREAM_ONLY,
    "x-queue-type",
    "x-max-length-bytes",
    _SINGLE_ACTIVE_CONSUMER,
)
#: Declared arguments that make `hash_kind` count a queue as limited. The type quorum and a delivery
#: limit have the same effect.
_LIMITING: Final = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    DEAD_LETTER_EXCHANGE,
)
_COMPARED: Final = (
    *_NUMBERS,
    *_STRINGS,
    "x-overflow",
    "x-queue-type",
    "x-delayed-retry-type",
    _SINGLE_ACTIVE_CONSUMER,
    DEDUPLICATION,
    _MAX_AGE,
    JOURNAL,
)

#: The arguments that have an effect.
EFFECTIVE_ARGUMENTS: Final = frozenset(_COMPARED)

#: Arguments that earlier versions stored without a check, because the arguments had no effect at
#: that time.
UNCHECKED_BEFORE: Final = frozenset(
    (
        "x-consumer-timeout",
        "x-delayed-retry-type",
        "x-delayed-retry-min",
        "x-delayed-retry-max",
        DEDUPLICATION,
    )
)

#: Key of a policy about queues -> the queue argument with the same meaning.
BY_POLICY: Final = {
    "message-ttl": "x-message-ttl",
    "expires": "x-expires",
    "max-length": "x-max-length",
    "max-length-bytes": "x-max-length-bytes",
    "overflow": "x-overflow",
    "dead-letter-exchange": DEAD_LETTER_EXCHANGE,
    "dead-letter-routing-key": DEAD_LETTER_KEY,
    "delivery-limit": "x-delivery-limit",
    "consumer-timeout": "x-consumer-timeout",
    "delayed-retry-type": "x-delayed-retry-type",
    "delayed-retry-min": "x-delayed-retry-min",
    "delayed-retry-max": "x-delayed-retry-max",
    "max-age": _MAX_AGE,
    "stream-max-segment-size-bytes": "x-stream-max-segment-size-bytes",
}

_AGES: Final = re.compile(r"(\d{1,9})([YMDhms])")

#: The arguments of a queue or policy that has no arguments.
EMPTY: Final[Mapping[str, object]] = {}


class QueueArguments:
    """The arguments of a queue, checked, together with the arguments of its policy.

    If the queue and the policy both set a limit or an age, the lower value applies. If both set a
    string or the size of a segment, the queue's own value applies. Raises PreconditionFailed if an
    argument is invalid.

    Two arguments need another argument, which the policy may set: `x-dead-letter-routing-key` and
    `x-delayed-retry-type`. Without the other argument, a new queue is refused. An existing queue
    (`exists` is True), which may have lost its policy, ignores the argument instead.
    """

    def __init__(
        self,
        name: str,
        vhost: str,
        arguments: Mapping[str, object],
        policy: Mapping[str, object] = EMPTY,
        exists: bool = False,
    ) -> None:
        thing = f"for queue '{name}' in vhost '{vhost}'"
        _check(thing, arguments)
        _check_type(thing, arguments)
        #: The arguments as declared.
        self.arguments = arguments
        #: The declared arguments that must be equal when the queue is declared again.
        self.given = {
            argument: value
            for argument, value in arguments.items()
            if argument in _COMPARED and not (argument == "x-queue-type" and value == "classic")
        }
        self.quorum = arguments.get("x-queue-type") == "quorum"
        self.stream = arguments.get("x-queue-type") == "stream"
        #: Three values of a stream: `max_age` is how long rows are kept, in ms (-1: for ever);
        #: `segment_bytes` the size of a segment in bytes; `journal` is True if the stream records
        #: all messages published in its virtual host.
        self.max_age: i64 = min(
            (parse_age(given[_MAX_AGE]) for given in (arguments, policy) if _MAX_AGE in given),
            default=-1,
        )
        self.segment_bytes: i64 = _number(
            arguments.get(_STREAM_ONLY[0], policy.get(_STREAM_ONLY[0], SEGMENT_BYTES))
        )
        self.journal = arguments.get(JOURNAL) is True
        self.single_active_consumer = arguments.get(_SINGLE_ACTIVE_CONSUMER) is True
        self.max_priority = _number(arguments.get("x-max-priority"))
        #: True if the queue drops a message whose `x-deduplication-header` equals the header of a
        #: message in the queue.
        self.deduplicates = arguments.get(DEDUPLICATION) is True
        if self.deduplicates and self.ranked:
            raise InvalidArgument(DEDUPLICATION, thing, "cannot be combined with 'x-max-priority'")
        self.ttl: i64 = _lowest(arguments, policy, "x-message-ttl")
        self.expires: i64 = _lowest(arguments, policy, "x-expires")
        self.max_length: i64 = _upper_bound(arguments, policy, "x-max-length")
        self.max_bytes: i64 = _upper_bound(arguments, policy, "x-max-length-bytes")
        self.delivery_limit: i64 = _delivery_limit(arguments, policy, self.quorum)
        #: Time in ms after which an unacknowledged delivery closes its channel; 0 for never, -1 if
        #: the broker's setting decides.
        self.consumer_timeout: i64 = _consumer_timeout(arguments, policy)
        #: Which returned messages wait before their next delivery, and for how long (ms): the delay
        #: of the first return, and the longest delay.
        self.retry_type = _string(arguments, policy, "x-delayed-retry-type") or "disabled"
        self.retry_min: i64 = _number(
            arguments.get("x-delayed-retry-min", policy.get("x-delayed-retry-min"))
        )
        longest = arguments.get("x-delayed-retry-max", policy.get("x-delayed-retry-max"))
        self.retry_max: i64 = NUMBER_MAX if longest is None else _number(longest)
        if self.retry_type != "disabled" and self.retry_min < 1:
            if not exists:
                needs = f"'{self.retry_type}' needs 'x-delayed-retry-min' of 1 ms or more"
                raise InvalidArgument("x-delayed-retry-type", thing, needs)
            self.retry_type = "disabled"
        overflow = _string(arguments, policy, "x-overflow")
        self.reject_publish = overflow in ("reject-publish", "reject-publish-dlx")
        self.dead_letter_refused = overflow == "reject-publish-dlx"
        self.dead_letter_exchange = _string(arguments, policy, DEAD_LETTER_EXCHANGE)
        self.dead_letter_key = _string(arguments, policy, DEAD_LETTER_KEY)
        if DEAD_LETTER_KEY in arguments and self.dead_letter_exchange is None and not exists:
            raise InvalidArgument(
                "x-dead-letter-routing-key",
                thing,
                "the argument 'x-dead-letter-exchange' must be set, too",
            )

    @property
    def ranked(self) -> bool:
        """True if the queue delivers messages of higher priority first."""
        return self.max_priority > 0

    @property
    def overflow(self) -> str:
        """The value of `x-overflow` that is in force."""
        if self.dead_letter_refused:
            return "reject-publish-dlx"
        return "reject-publish" if self.reject_publish else "drop-head"

    @property
    def hash_kind(self) -> str:
        """The kind of the queue, as a text that the consistent-hash exchange hashes.

        The value depends only on the declared arguments, which never change, and not on the policy.
        So a change of the policy does not change which messages the queue gets.
        """
        declared = self.arguments
        if self.stream:
            return "StreamQueue"
        if self.ranked:
            return "RankedQueue"
        limited = _delivery_limit(declared, EMPTY, self.quorum) >= 0 or any(
            argument in declared for argument in _LIMITING
        )
        return "LimitedQueue" if limited or self.quorum else "Queue"

    @property
    def needs_only_plain_queue(self) -> bool:
        """True if the class Queue itself, which has no limits, can apply all these arguments.

        If False, the queue needs a subclass such as LimitedQueue.
        """
        return (
            self.ttl < 0
            and self.expires < 0
            and self.max_length == UNLIMITED
            and self.max_bytes == UNLIMITED
            and not self.quorum
            and self.delivery_limit < 0
            and self.dead_letter_exchange is None
            and not self.ranked
            and self.retry_type == "disabled"
            and not self.deduplicates
        )


def _check(thing: str, arguments: Mapping[str, object]) -> None:
    """Raise PreconditionFailed if the value of an argument is not permitted for any queue.

    Combinations of arguments are not checked here. `thing` names the queue in the error.
    """
    for argument, least in _NUMBERS.items():
        value = arguments.get(argument, least)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgument(argument, thing, "must be a number")
        if value < least:
            raise InvalidArgument(argument, thing, f"{value} is too small; the minimum is {least}")
        most = PRIORITY_MAX if argument == "x-max-priority" else NUMBER_MAX
        if value > most:
            raise InvalidArgument(argument, thing, f"{value} is too large; the maximum is {most}")
    for argument in _STRINGS:
        text = arguments.get(argument, "")
        if not isinstance(text, str):
            raise InvalidArgument(argument, thing, "must be a string")
        if len(text.encode()) > NAME_BYTES:
            raise InvalidArgument(argument, thing, f"must not be longer than {NAME_BYTES} bytes")
    for argument, words in _CHOICES.items():
        word = arguments.get(argument, words[0])
        if not isinstance(word, str):
            raise InvalidArgument(argument, thing, "must be a string")
        if word not in words:
            raise InvalidArgument(
                argument, thing, f"must be one of {', '.join(words)}, not '{word}'"
            )
    age = arguments.get(_MAX_AGE)
    if age is not None and parse_age(age) < 0:
        raise InvalidArgument(
            _MAX_AGE,
            thing,
            f"must be an age such as '7D' (a number and Y, M, D, h, m or s), not {age!r}",
        )
    for argument in (JOURNAL, _SINGLE_ACTIVE_CONSUMER, DEDUPLICATION):
        if not isinstance(arguments.get(argument, False), bool):
            raise InvalidArgument(argument, thing, "must be true or false")


def parse_age(age: object) -> i64:
    """Return an age such as `7D` in milliseconds, or -1 if the value is not an age."""
    match = _AGES.fullmatch(age) if isinstance(age, str) else None
    return i64(int(match[1]) * _UNITS[match[2]] * 1000) if match is not None else -1


def _check_type(thing: str, arguments: Mapping[str, object]) -> None:
    """Raise PreconditionFailed if an argument is not permitted for the queue's type."""
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
    """Raise PreconditionFailed unless the queue is durable, not exclusive and not auto-delete.

    Called for queues of type quorum or stream; `kind` is the type.
    """
    for wrong, what in (
        (not durable, "non-durable"),
        (exclusive, "exclusive-owner"),
        (auto_delete, "auto-delete"),
    ):
        if wrong:
            raise PreconditionFailed(
                f"invalid property '{what}' for queue '{name}' in vhost '{vhost}': "
                f"queues of type {kind} must be durable, not exclusive and not auto-delete"
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


def _consumer_timeout(arguments: Mapping[str, object], policy: Mapping[str, object]) -> i64:
    """Return the lower timeout of `arguments` and `policy` in ms; -1 if neither has a timeout.

    The value 0 means no timeout, and counts as the highest value. So a client cannot turn off the
    timeout of a policy.
    """
    timeouts = [
        _number(given["x-consumer-timeout"])
        for given in (arguments, policy)
        if "x-consumer-timeout" in given
    ]
    return min((timeout for timeout in timeouts if timeout > 0), default=0 if timeouts else -1)


def _lowest(arguments: Mapping[str, object], policy: Mapping[str, object], argument: str) -> i64:
    """Return the lower value of this argument in `arguments` and `policy`; -1 if neither has it."""
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


#: The arguments of a queue that was declared without arguments, and to which no policy applies.
NO_ARGUMENTS: Final = QueueArguments("", "", EMPTY)
