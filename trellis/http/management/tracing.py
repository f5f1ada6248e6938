"""Traces of messages: begin a trace, read its events, list and end traces."""

from __future__ import annotations

from typing import Final

from broker.routing.tracing import EVENTS_MAX, Trace, TraceEvent, TraceFilter
from broker.vhost.vhost import VirtualHost
from matching.grammar import AMQP, MQTT, InvalidPattern
from trellis.http.management.answers import (
    Call,
    Empty,
    Listing,
    Row,
    bad_request,
    iterate,
    not_found,
    text,
)
from trellis.http.management.messages import whole_number
from trellis.http.management.topology import exchange_name

#: Default and largest number of messages that a trace follows in a second.
RATE: Final = 10
RATE_MAX: Final = 1_000
#: Largest number of events in one answer.
_READ_MAX: Final = 200
_FIELDS: Final = ("exchange", "key", "topic", "user", "client", "queue", "message_id")


async def begin(call: Call) -> Row:
    """Begin a trace of the messages that match the fields of the body; return its number.

    The body may have `exchange`, `key` (a binding key), `topic` (an MQTT topic filter), `user` and
    `client` of the publisher, `queue`, `message_id`, and `rate` (messages per second, default 10).
    """
    vhost = call.vhost(call.path_parameters[0])
    row = call.body()
    unknown = [field for field in row if field not in (*_FIELDS, "rate")]
    if unknown:
        raise bad_request(f"unknown field '{unknown[0]}'; known are {', '.join(_FIELDS)}, rate")
    given = {field: text(row, field) for field in _FIELDS if field in row}
    exchange = given.pop("exchange", None)
    chosen = TraceFilter(None if exchange is None else exchange_name(exchange), **given)
    levels = call.node.mqtt.options.max_levels
    try:
        if chosen.key:
            AMQP.check(chosen.key, levels)
        if chosen.topic:
            MQTT.check(chosen.topic, levels)
    except InvalidPattern as error:
        raise bad_request(f"the filter of the trace is invalid: {error}") from None
    rate = whole_number(row, "rate", RATE, RATE_MAX)
    trace = vhost.traces.begin(chosen, max(1, rate))
    call.node.turn.schedule()
    call.audit("begin", "trace", vhost.name, str(trace.number), {**row})
    return {"trace": trace.number, "rate": trace.rate}


async def traces(call: Call) -> Listing:
    """List the running traces of the virtual host that the path names."""
    vhost = call.vhost(call.path_parameters[0])
    return Listing(iterate(_row(trace) for trace in vhost.traces.running))


async def events(call: Call) -> Row:
    """Return the next events of the trace in the path, after the event with the number `after`.

    The broker removes the events up to `after`, because the client has read them. `lost` is the
    number of events that were removed unread, because more than EVENTS_MAX events waited.
    """
    _, trace = _known(call)
    after = whole_number(call.query, "after", 0, 1 << 53)
    batch = trace.read(after, _READ_MAX)
    return {**_row(trace), "events": [_event(event) for event in batch]}


async def end(call: Call) -> Empty:
    """End the trace that the path names. The traced messages are not changed."""
    vhost, trace = _known(call)
    vhost.traces.end(trace)
    call.audit("end", "trace", vhost.name, str(trace.number))
    return Empty()


def _known(call: Call) -> tuple[VirtualHost, Trace]:
    """Return the virtual host and the trace that the path names. Raises ApiRefusal."""
    vhost, number = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    trace = vhost.traces.find(int(number)) if number.isascii() and number.isdecimal() else None
    if trace is None:
        raise not_found(
            f"there is no trace '{number}' in vhost '{vhost.name}': a trace that is not read for "
            "30 s ends by itself"
        )
    return vhost, trace


def _row(trace: Trace) -> Row:
    chosen = trace.chosen
    row: Row = {field: getattr(chosen, field) for field in _FIELDS if getattr(chosen, field)}
    if chosen.exchange is not None:
        row["exchange"] = chosen.exchange
    return {
        "trace": trace.number,
        "filter": row,
        "rate": trace.rate,
        "followed": trace.followed,
        "skipped": trace.skipped,
        "lost": trace.lost,
        "waiting_max": EVENTS_MAX,
    }


def _event(event: TraceEvent) -> Row:
    return {
        "number": event.number,
        "time": event.time,
        "message": event.message,
        "step": event.step,
        "place": event.place,
        "detail": event.detail,
    }
