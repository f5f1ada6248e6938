"""Problems of a queue or a client: `GET /api/why/...` and `trellis why`."""

from __future__ import annotations

import asyncio
import math
from typing import Final

import msgspec

from protocols.mqtt.codec.topics import EXCHANGE
from trellis.diagnosis.clients import (
    belongs_to,
    connection_findings,
    refusal_findings,
    session_findings,
    watch_connection,
    watch_session,
)
from trellis.diagnosis.findings import Problem
from trellis.diagnosis.queues import counts_of, queue_findings, watch_queue
from trellis.diagnosis.topics import follow_topic, topic_findings
from trellis.http.management.answers import Call, Row, bad_request, not_found
from trellis.http.management.connections import name_of
from trellis.http.management.routing import route_answer
from trellis.http.management.serializers import queue_row
from trellis.http.management.topology import named_queue
from trellis.monitoring.route_question import SECTIONS, RouteQuestion

#: Longest time in seconds between the two counts of a queue.
SECONDS_MAX: Final = 10.0
#: Largest number of connections and sessions of one client, or one user, that are examined.
CLIENTS_MAX: Final = 20
#: Largest number of queues with each verdict, and of bindings of each exchange, in the answer about
#: a topic.
DESTINATIONS_MAX: Final = 200


async def queue(call: Call) -> Row:
    """Return what is wrong with a queue, or with the inbox of an MQTT session.

    The messages of the queue are counted twice, to see if the queue grows. The query may have
    `seconds`, the time between the counts (default 1); with 0, the messages are counted once.
    """
    vhost, queue = named_queue(call)
    seconds = _seconds(call)
    before = None
    clock = asyncio.get_running_loop().time
    if seconds:
        before = counts_of(queue, clock())
        await asyncio.sleep(seconds)
        vhost, queue = named_queue(call)
    findings = queue_findings(vhost, queue, before, counts_of(queue, clock()))
    shown = queue_row(vhost, queue, call.broker.name)
    fields = ("name", "vhost", "type", "consumers", "messages_ready", "messages_unacknowledged")
    summary = {name: shown[name] for name in fields} | {"head_age_ms": queue.head_age}
    return {"queue": summary} | _findings_and_next(findings, watch_queue(vhost, queue))


def _seconds(call: Call) -> float:
    try:
        seconds = float(call.query.get("seconds", "1"))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= SECONDS_MAX:
        raise bad_request(f"the parameter 'seconds' must be a number from 0 to {SECONDS_MAX:g}")
    return seconds


async def client(call: Call) -> Row:
    """Return what is wrong with a client.

    The path names the client by MQTT client identifier, AMQP connection name, address, or user.
    """
    name = call.path_parameters[0]
    findings = refusal_findings(call.node.refusals.recent, name, call.identity.name)
    known = bool(findings)
    sessions, connections, left_out = 0, 0, 0
    after, of_sessions = watch_session(name), list[Problem]()
    for vhost in call.vhosts:
        session = call.node.mqtt.sessions.find(vhost, name)
        if session is not None:
            sessions += 1
            of_sessions += session_findings(session)
    async with call.slice() as work:
        for front in call.node.fronts:
            for connection in list(front.connections):
                if work.over:
                    await work.pause()
                if connection.finished:
                    continue
                row = connection.describe()
                if not belongs_to(row, name_of(connection), name):
                    continue
                connections += 1
                after = watch_connection(str(row["peer"]))
                if connections > CLIENTS_MAX:
                    left_out += 1
                    continue
                findings += connection_findings(connection, row, call.broker.alarms)
    if not (known or sessions or connections):
        raise not_found(
            f"no client is known as '{name}': no session, open connection or recent refusal has "
            "this MQTT client identifier, AMQP connection name, address or user"
        )
    return {
        "client": {"name": name, "sessions": sessions, "connections": connections},
        "examined_all": not left_out,
    } | _findings_and_next([*findings, *of_sessions], after)


async def topic(call: Call) -> Row:
    """Return why messages of an MQTT topic do not arrive.

    The query may have `user`, a publisher whose rights are checked.
    """
    name = call.path_parameters[1]
    question = RouteQuestion(mqtt=name, user=call.query.get("user"))
    answer = route_answer(call, call.path_parameters[0], question, DESTINATIONS_MAX)
    sections: dict[str, list[Row]] = {section: [] for section in SECTIONS}
    async with call.slice() as work:
        for row in answer.rows():
            if row is not None:
                sections[row[0]].append(row[1])
            if work.over:
                await work.pause()
    bound = bool(call.vhost(answer.head["vhost"]).exchange(EXCHANGE).bindings)
    findings = list(topic_findings(answer.head | sections, bound))
    verdicts = answer.head["verdicts"]
    return {
        "topic": name,
        "vhost": answer.head["vhost"],
        "refusal": answer.head["refusal"],
        "reached": sum(verdicts.values()),
        "verdicts": verdicts,
        "queues": sections["queues"],
    } | _findings_and_next(findings, follow_topic(name, answer.head["vhost"]))


def _findings_and_next(findings: list[Problem], otherwise: str) -> Row:
    """Return the fields of an answer with its findings, and with the command to type next.

    The command is that of the most important finding, or `otherwise` if there is no finding.
    """
    after = findings[0].next if findings else otherwise
    return {"findings": [msgspec.to_builtins(finding) for finding in findings], "next": after}
