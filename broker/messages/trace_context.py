"""Trace contexts: the headers `traceparent` and `tracestate` of a message (W3C Trace Context).

A publisher that takes part in distributed tracing writes these headers: as headers of an AMQP
message, or as User Properties of an MQTT 5 message. The broker forwards the headers unchanged.
"""

from __future__ import annotations

import re
from typing import Final

from broker.messages.message import TRACEPARENT, Message

#: Name of the header with data of tracing systems, which the broker does not interpret.
TRACESTATE: Final = "tracestate"
#: Longest `tracestate` that the broker reads, in characters (W3C Trace Context section 3.3.1.5).
TRACESTATE_MAX: Final = 512
#: Bit of the flags: the publisher records this trace (W3C Trace Context section 3.2.2.5.1).
SAMPLED_FLAG: Final = 1
#: The form of `traceparent` (W3C Trace Context section 3.2). A version above 00 may append fields.
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.S)


class TraceContext:
    """The trace of a message: ids in lowercase hexadecimal, flags, and the text of `tracestate`.

    `span_id` is the publisher's span. `state` is "" if the message has no valid `tracestate`.
    """

    def __init__(self, trace_id: str, span_id: str, flags: int, state: str) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.flags = flags
        self.state = state

    @property
    def sampled(self) -> bool:
        """True if the publisher records the trace."""
        return bool(self.flags & SAMPLED_FLAG)


def trace_context_of(message: Message) -> TraceContext | None:
    """Return the trace context in the headers of a message; None without a valid `traceparent`."""
    if not message.encoding.may_be_traced(message.content):
        return None
    headers = message.properties.get("headers")
    if not isinstance(headers, dict):
        return None
    return parse_trace_context(_text(headers.get(TRACEPARENT)), _text(headers.get(TRACESTATE)))


def parse_trace_context(parent: str, state: str) -> TraceContext | None:
    """Return the trace context with these values of `traceparent` and `tracestate`.

    Return None if `parent` is invalid (W3C Trace Context section 3.2.2). An invalid `state` is
    replaced by "".
    """
    match = _FORM.fullmatch(parent)
    if match is None:
        return None
    version, trace_id, span_id, flags, further = match.groups()
    if version == "ff" or (version == "00" and further is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    kept = state if len(state) <= TRACESTATE_MAX and state.isascii() and state.isprintable() else ""
    return TraceContext(trace_id, span_id, int(flags, 16), kept)


def _text(value: object) -> str:
    """Return the value of a header as text; "" if it is neither text nor ASCII bytes."""
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""
