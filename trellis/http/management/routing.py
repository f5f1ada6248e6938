"""The route of a message that is not published, and trials of changed bindings."""

from __future__ import annotations

from functools import partial
from typing import Final

from trellis.http.management.answers import Call, SectionedRows, bad_request, text
from trellis.http.management.messages import whole_number
from trellis.http.management.topology import exchange_name
from trellis.monitoring import trial_rows
from trellis.monitoring.route_question import SECTIONS, RouteQuestion, headers_of_lines
from trellis.monitoring.route_rows import RouteAnswer

#: Largest value of `limit` in the query.
LIMIT_MAX: Final = 1_000_000


async def route(call: Call) -> SectionedRows:
    """Explain where a message would go: matching bindings, rights, queues and near misses.

    The message is given by the query: `exchange` and `key`, or `mqtt` (a topic); `vhost` (default
    `/`), `header` (NAME=VALUE, may be repeated), `user` and `client_id`. With `limit`, the answer
    lists at most this number of matching bindings of each exchange, and at most this number of
    queues for each verdict. Nothing is published.
    """
    query = call.query
    mqtt = query.get("mqtt")
    if (mqtt is None) == ("exchange" not in query):
        raise bad_request(
            "the query must give the message's address: either 'exchange' (and 'key'), or 'mqtt' "
            "(a topic)"
        )
    question = RouteQuestion(
        exchange_name(query.get("exchange", "")),
        query.get("key", ""),
        dict(headers_of_lines(query.get("header", ""))),
        query.get("user"),
        mqtt,
        query.get("client_id", ""),
    )
    limit = whole_number(query, "limit", 0, LIMIT_MAX)
    answer = route_answer(call, query.get("vhost", "/"), question, limit)
    return SectionedRows(answer.head, SECTIONS, answer.rows())


def route_answer(call: Call, vhost: str, question: RouteQuestion, limit: int) -> RouteAnswer:
    """Return the answer to the question where a message in a virtual host would go.

    The answer has at most `limit` matching bindings of each exchange, and at most `limit` queues
    for each verdict; 0 means no limit. Raises ApiRefusal if the caller may not see the
    virtual host, or the rights of `question.user`.
    """
    # The permissions of another user are for administrators, as in /api/permissions.
    if question.user is not None and question.user != call.identity.name:
        call.require_administrator(f"read the rights of user '{question.user}'")
    return RouteAnswer(
        call.vhost(vhost),
        question,
        call.broker.authenticator.identity_of,
        call.node.mqtt.options.max_levels,
        limit,
    )


async def try_changes(call: Call) -> SectionedRows:
    """Return which queues would have got more or fewer messages with changed bindings.

    The messages are the messages of the last hour. The body of the request has `vhost` (default
    `/`) and `changes`, a list of bindings to add or remove. Each binding has `change` (add or
    remove), `source`, `destination`, `destination_type` (queue or exchange), `routing_key` and
    `arguments`. `deleted` is a list of objects to delete, each with `type` (queue, exchange or
    session) and `name`. Nothing in the broker changes.
    """
    body = call.body()
    vhost = call.vhost(text(body, "vhost", "/"))
    await call.node.topic_collector.collect()
    answer = trial_rows.TrialAnswer(
        vhost,
        trial_rows.changes_of(body),
        call.broker.history,
        trial_rows.deleted_of(body),
        partial(call.node.mqtt.sessions.find, vhost),
    )
    return SectionedRows(answer.head, trial_rows.SECTIONS, answer.rows())
