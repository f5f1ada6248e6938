"""Lines for a confirmation: consequences of a deletion or a policy, computed by the broker.

For a queue, an exchange, a binding or a session, the broker tries the deletion on the topics of the
last hour (`POST /api/route/try`), as for `trellis route --remove`. For a policy, permissions, a
role or a virtual host, the broker answers `GET /api/consequences/...`. For a policy that a command
sets, the broker answers `POST /api/consequences/policies/...`. None of these requests changes the
broker.

right_consequences.py has the lines about permissions, topic rules, tags and roles that are set.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from trellis.cli.actions import PERMISSIONS
from trellis.cli.api_client import ApiClient, ApiRefused
from trellis.cli.readable import count_text, rate_text, time_text

Row = dict[str, Any]

#: Largest number of queues, or of bindings, that the question before a deletion names.
SHOWN: Final = 5
#: The smallest rate in messages per second that is printed as a rate.
_RATE_MIN: Final = 0.1
#: The end of a sentence about messages that would reach no queue and no session.
_UNROUTABLE: Final = " would have become unroutable"
#: The objects that are deleted with a virtual host, besides queues: field of the answer -> noun.
_OTHERS: Final = {
    "streams": "stream",
    "exchanges": "exchange",
    "policies": "policy",
    "sessions": "MQTT session",
    "retained": "retained message",
}


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
        yield _flow("", answer["newly_unroutable"], seconds, _UNROUTABLE)
    else:
        yield f"no message of the last {time_text(seconds)}{_UNROUTABLE}"
    changed = [row for row in answer["queues"] if (row["type"], row["name"]) != deleted]
    for row in changed[:SHOWN]:
        verb = "lost" if row["effect"] == "loses" else "gained"
        subject = f"{row['type']} '{row['name']}' would have {verb}"
        yield _flow(f"{subject} ", row["messages"], seconds)
    more = len(changed) - SHOWN + answer["left_out"]
    if more > 0:
        yield f"further queues and sessions that gain or lose messages: {more:,}"
    if not answer["complete"]:
        known = count_text(answer["topics_known"], "topic")
        yield f"the broker ended the trial early: the numbers cover {answer['topics']:,} of {known}"
    if answer["unremembered"]:
        left_out = count_text(answer["unremembered"], "message")
        yield f"the numbers leave out {left_out}, whose topics the broker does not remember"
    yield from header_lines(answer)


def header_lines(answer: Row) -> Iterator[str]:
    """Yield the lines that say for how many topics the numbers are not exact.

    The numbers of a topic are not exact if its messages pass an exchange that looks at headers.
    `answer` is the answer of `POST /api/route/try`.
    """
    if answer["by_headers"]:
        yield (
            f"{count_text(answer['by_headers'], 'topic')} pass an exchange that looks at headers: "
            "the numbers of these topics are computed as if the messages had no headers"
        )
    if answer["estimated"]:
        yield (
            f"{count_text(answer['estimated'], 'topic')} pass an exchange that looks at headers: "
            "the numbers of these topics are estimates from samples of the messages"
        )


def _flow(before: str, messages: int, seconds: float, after: str = "") -> str:
    """Return a sentence about a number of messages of the last `seconds`, with their rate.

    `before` and `after` are the words around the number of messages.
    """
    rate = messages / seconds
    in_brackets = f" ({rate_text(rate, 'message')})" if rate >= _RATE_MIN else ""
    amount = f"{count_text(messages, 'message')} of the last {time_text(seconds)}"
    return f"{before}{amount}{after}{in_brackets}"


# -- policies


def policy_lines(client: ApiClient, vhost: str, name: str) -> Iterator[str]:
    """Yield the lines about the queues and exchanges that change if a policy is deleted."""
    yield from policy_change_lines(
        client.json("GET", "consequences", "policies", vhost, name), "deleted"
    )


def policy_change_lines(answer: Row, verb: str) -> Iterator[str]:
    """Yield the lines about the effect of a change of a policy on queues, exchanges and messages.

    `answer` is the broker's answer about the change. `verb` is "set" or "deleted".
    """
    queues, exchanges = answer["queues"], answer["exchanges"]
    yield (
        f"policy '{answer['policy']}' in vhost '{answer['vhost']}' will be {verb}: the arguments "
        f"of {count_text(queues, 'queue')} and {count_text(exchanges, 'exchange')} will change"
    )
    for row in answer["changes"][:SHOWN]:
        yield f"{row['type']} '{row['name']}': {_changes_text(row)}"
    more = queues + exchanges - min(SHOWN, len(answer["changes"]))
    if more > 0:
        yield f"further queues and exchanges whose arguments will change: {more:,}"
    if answer["dropped"]:
        messages = count_text(answer["dropped"], "message")
        yield f"{messages} beyond a queue limit will be dropped"
    if answer["dead_lettered"]:
        messages = count_text(answer["dead_lettered"], "message")
        yield f"{messages} beyond a queue limit will go to the dead letter exchange of the queue"
    if answer["uncounted"]:
        queues = count_text(answer["uncounted"], "queue")
        yield f"{queues} may lose further messages, which exceed the limit max-length-bytes"


def _changes_text(row: Row) -> str:
    """Return the changed arguments of a queue or exchange: `max-length 1000 -> not set`."""
    changes = ", ".join(
        f"{key} {_value(before)} -> {_value(after)}"
        for key, (before, after) in row["changes"].items()
    )
    by = f" (policy '{row['policy']}')" if row["policy"] else ""
    messages = f"; {count_text(row['messages'], 'message')} in the queue" if row["messages"] else ""
    return changes + by + messages


def _value(value: object) -> str:
    return "not set" if value is None else f"'{value}'" if isinstance(value, str) else f"{value}"


# -- permissions and roles


def permission_lines(client: ApiClient, vhost: str, user: str) -> Iterator[str]:
    """Yield the lines about the rights that a user loses in a virtual host."""
    answer: Row = client.json("GET", "consequences", "permissions", vhost, user)
    if answer["role"]:
        grants = grant_text(answer)
        yield f"user '{user}' will lose its own permissions in vhost '{vhost}': {grants}"
        yield (
            f"{count_text(answer['connections'], 'open connection')} and "
            f"{count_text(answer['sessions'], 'MQTT session')} of user '{user}' will then have the "
            f"permissions of role '{answer['role']}'"
        )
        return
    yield f"user '{user}' will lose its access to vhost '{vhost}': {grant_text(answer)}"
    yield _closed_text(answer)


def role_lines(client: ApiClient, name: str, vhost: str | None = None) -> Iterator[str]:
    """Yield the lines about the rights that a role grants, and about the users that lose them.

    If `vhost` is None, the lines are about the deletion of the role, else about the removal of the
    role's grants in this virtual host.
    """
    path, query = ("consequences", "roles", name), {} if vhost is None else {"vhost": vhost}
    answer: Row = client.decode(client.request("GET", *path, query=query), Row, "answer", *path)
    users = count_text(answer["users"], "user")
    have = "has" if answer["users"] == 1 else "have"
    if vhost is None:  # The broker refuses to delete a role that a user has.
        yield f"role '{name}', which no user has, will be deleted"
    for row in answer["vhosts"]:
        grants = grant_text(row)
        yield f"role '{name}' will lose its permissions in vhost '{row['vhost']}': {grants}"
        if answer["users"]:
            own = answer["users"] - row["losing"]
            losing = count_text(row["losing"], "user")
            yield (
                f"{users} {have} role '{name}': {losing} will lose access to vhost "
                f"'{row['vhost']}', and {own:,} {'keeps' if own == 1 else 'keep'} other "
                "permissions in the vhost"
            )
            yield _closed_text(row)


def grant_text(row: Row) -> str:
    """Return permissions as text: `configure 'a', write 'b', read 'c', 2 topic rules`."""
    patterns = ", ".join(f"{name} '{row[name]}'" for name in PERMISSIONS)
    return patterns + (f", {count_text(len(row['rules']), 'topic rule')}" if row["rules"] else "")


def _closed_text(row: Row) -> str:
    return (
        f"{count_text(row['connections'], 'open connection')} will be closed, and "
        f"{count_text(row['sessions'], 'MQTT session')} with "
        f"{count_text(row['messages'], 'message')} will end"
    )


# -- virtual hosts


def vhost_lines(row: Row) -> Iterator[str]:
    """Yield the lines about the objects and messages that are deleted with a virtual host.

    `row` is the answer of `GET /api/consequences/vhosts/NAME`.
    """
    yield (
        f"vhost '{row['vhost']}' will be deleted with {count_text(row['queues'], 'queue')} and "
        f"{count_text(row['messages'], 'message')}; "
        f"{count_text(row['connections'], 'connection')} will be closed"
    )
    if row["deepest"]:
        shown = [f"{one['messages']:,} in '{one['name']}'" for one in row["deepest"][:SHOWN]]
        yield f"queues with the most messages: {', '.join(shown)}"
    texts = {field: count_text(row[field], noun) for field, noun in _OTHERS.items()}
    if row["rows"]:
        texts["streams"] += f" with {count_text(row['rows'], 'row')}"
    deleted = [text for field, text in texts.items() if row[field]]
    if deleted:
        yield f"these objects will be deleted, too: {', '.join(deleted)}"
    if row["users"]:
        yield f"{count_text(row['users'], 'user')} will lose permissions in vhost '{row['vhost']}'"
    seconds = max(1.0, time.time() - row["since"])
    if row["published"]:
        yield _flow("", row["published"], seconds, _UNROUTABLE)
    else:
        yield f"no message was published in vhost '{row['vhost']}' in the last {time_text(seconds)}"
