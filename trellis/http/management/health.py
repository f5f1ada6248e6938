"""Health checks: status 200 with `{"status": "ok"}`, or 503 with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from broker.messages.message import AT_MOST_ONCE, PLAIN, Message
from broker.routing.plan_search import UNLIMITED, SearchSlot
from broker.vhost.vhost import VirtualHost
from trellis.http.management.answers import Call, Failure, Row, bad_request
from trellis.http.management.overview import listeners

OK: Final[Row] = {"status": "ok"}
#: Units of a duration in the path of a check, by their length in days.
UNITS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
#: Name of the queue that the aliveness test uses.
ALIVE: Final = "aliveness-test"


def failed(reason: str, **more: object) -> Failure:
    """Return the answer of a failed health check: status 503 with the reason."""
    return Failure(503, {"status": "failed", "reason": reason, **more})


async def always(call: Call) -> Row:
    """Report success for a health check of RabbitMQ that cannot fail in Trellis."""
    return OK


async def alarms(call: Call) -> Row | Failure:
    """Check that no alarm is on."""
    on = list(call.broker.alarms.on)
    return (
        failed(
            "There are alarms in effect",
            alarms=[{"node": call.broker.name, "resource": name} for name in on],
        )
        if on
        else OK
    )


async def ready(call: Call) -> Row | Failure:
    """Check that the broker serves clients: it is neither starting nor stopping."""
    return OK if call.node.ready else failed("the broker is starting or stopping")


async def virtual_hosts(call: Call) -> Row | Failure:
    """Check that no virtual host is being deleted."""
    closing = [vhost.name for vhost in call.broker.vhosts.values() if vhost.closing]
    return (
        failed("Some virtual hosts are being deleted", **{"virtual-hosts": closing})
        if closing
        else OK
    )


async def port_listener(call: Call) -> Row | Failure:
    """Check that a listener is open on the port that the path names."""
    wanted = call.path_parameters[0]
    if not wanted.isdecimal():
        raise bad_request(f"the port must be a number, not '{wanted[:20]}'")
    ports = [row["port"] for row in listeners(call)]
    return (
        {"status": "ok", "port": int(wanted)}
        if int(wanted[:9]) in ports
        else failed("No active listener", missing=int(wanted[:9]), ports=ports)
    )


async def protocol_listener(call: Call) -> Row | Failure:
    """Check that a listener is open for the protocol that the path names."""
    wanted = call.path_parameters[0].lower()
    protocols = [row["protocol"] for row in listeners(call)]
    names = {
        "amqp091": "amqp",
        "amqp0.9.1": "amqp",
        "amqp/ssl": "amqp/ssl",
        "amqps": "amqp/ssl",
        "mqtts": "mqtt/ssl",
    }
    if names.get(wanted, wanted) in protocols:
        return {"status": "ok", "protocol": wanted}
    return failed("No active listener", missing=wanted, protocols=protocols)


async def certificates(call: Call) -> Row | Failure:
    """Check that no TLS certificate expires within the time that the path gives."""
    count, unit = call.path_parameters
    if unit not in UNITS or not count.isdecimal() or len(count) > 6:
        raise bad_request(
            f"the duration must be a number of {', '.join(UNITS)}, not '{count[:20]} {unit[:20]}'"
        )
    until = datetime.now(UTC).timestamp() + int(count) * UNITS[unit] * 86_400
    expired = [
        {"file": file, "not_after": datetime.fromtimestamp(end, UTC).isoformat()}
        for file, end in call.node.certificates.expirations.items()
        if end < until
    ]
    return failed("Certificates expiring", expired=expired) if expired else OK


async def aliveness(call: Call) -> Row | Failure:
    """Check that a message published to the queue `aliveness-test` arrives; empty the queue."""
    vhost = call.vhost(call.path_parameters[0])
    for operation, kind, name in (
        ("configure", "queue", ALIVE),
        ("write", "exchange", "amq.default"),
        ("read", "queue", ALIVE),
    ):
        call.may(operation, kind, name, vhost)
    if ALIVE not in vhost.queues:
        await call.make_durable(lambda ticket: vhost.declare_queue(ALIVE, ticket=ticket))
    call.node.turn.schedule()
    return (
        OK
        if _comes_through(vhost)
        else failed("a message published to the queue 'aliveness-test' did not arrive there")
    )


def _comes_through(vhost: VirtualHost) -> bool:
    queue = vhost.queues[ALIVE]
    queue.purge()
    context = vhost.internal
    route = vhost.route(context, "", ALIVE, SearchSlot(UNLIMITED))
    assert route is not None, "a search without a limit does not pause"
    context.received += 1
    message = Message(route, b"test_message", PLAIN, AT_MOST_ONCE)
    vhost.publish(context, route, route.plan, message, None)
    came = queue.depth == 1
    queue.purge()
    return bool(came)
