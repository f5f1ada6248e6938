"""Consequences of deleting a queue, exchange, binding or session, computed by the broker.

The broker tries the deletion on the topics of the last hour (`POST /api/route/try`), as for
`trellis route --remove`, and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from trellis.cli.api_client import ApiClient, ApiRefused
from trellis.cli.readable import count_text, rate_text, time_text

Row = dict[str, Any]

#: Largest number of queues, or of bindings, that the question before a deletion names.
SHOWN: Final = 5
#: The smallest rate in messages per second that is printed as a rate.
_RATE_MIN: Final = 0.1


def deletion_lines(client: ApiClient, vhost: str, kind: str, name: str) -> Iterator[str]:
    """Yield the lines about the effect of a deletion on messages.

    The lines name the messages that other queues would gain or lose, or that no queue would get.
    `kind` is "queue", "exchange" or "session", and `name` the object to delete.
    """
    body = {"vhost": vhost, "deleted": [{"type": kind, "name": name}]}
    return _trial_lines(client, body, (kind, name))


def unbinding_lines(client: ApiClient, binding: Row) -> Iterator[str]:
    """Yield the lines about the effect on messages if a binding is removed.

    The lines name the messages that queues would lose, or that no queue would get. `binding` is a
    row of `GET /api/bindings`.
    """
    fields = ("source", "destination", "destination_type", "routing_key", "arguments")
    change = {"change": "remove", **{field: binding[field] for field in fields}}
    return _trial_lines(client, {"vhost": binding["vhost"], "changes": [change]})


def _trial_lines(
    client: ApiClient, body: Row, deleted: tuple[str, str] = ("", "")
) -> Iterator[str]:
    """Ask the broker to try the changes in `body`; yield the lines about its answer.

    The lines leave out the messages that the `deleted` object (type, name) would lose.
    """
    try:
        answer: Row = client.json("POST", "route", "try", body=body)
    except ApiRefused as refusal:
        yield f"the number of messages that become unroutable is unknown: {refusal}"
        return
    seconds = max(1.0, time.time() - answer["since"])
    if answer["newly_unroutable"]:
        yield _flow("", "become unroutable", answer["newly_unroutable"], seconds)
    else:
        yield f"no message of the last {time_text(seconds)} would have become unroutable"
    changed = [row for row in answer["queues"] if (row["type"], row["name"]) != deleted]
    for row in changed[:SHOWN]:
        subject = f"{row['type']} '{row['name']}' {row['effect']}"
        yield _flow(f"{subject} ", "", row["messages"], seconds)
    more = len(changed) - SHOWN + answer["left_out"]
    if more > 0:
        yield f"further queues and sessions that gain or lose messages: {more:,}"
    if not answer["complete"]:
        known = count_text(answer["topics_known"], "topic")
        yield f"these numbers cover {answer['topics']:,} of {known}"
    if answer["unremembered"]:
        yield (
            f"the broker does not remember the topics of further "
            f"{count_text(answer['unremembered'], 'message')}"
        )
    yield from header_lines(answer)


def header_lines(answer: Row) -> Iterator[str]:
    """Yield the lines that say for how many topics the numbers are not exact.

    This is so if an exchange looks at headers. `answer` is the answer of `POST /api/route/try`.
    """
    if answer["by_headers"]:
        yield (
            f"{count_text(answer['by_headers'], 'topic')} pass an exchange that looks at headers: "
            "their numbers are computed as if the messages had no headers"
        )
    if answer["estimated"]:
        yield (
            f"{count_text(answer['estimated'], 'topic')} pass an exchange that looks at headers: "
            "for them the numbers are estimates from samples of the messages"
        )


def _flow(before: str, after: str, messages: int, seconds: float) -> str:
    """Return a sentence about a number of messages of the last `seconds`, with their rate.

    `before` and `after` are the words around the rate.
    """
    rate = messages / seconds
    amount = rate_text(rate, "message") if rate >= _RATE_MIN else "messages"
    words = f"{before}{amount} {after}".strip()
    return f"{words}: {messages:,} in the last {time_text(seconds)}"
