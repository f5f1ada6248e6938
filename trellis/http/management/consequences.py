"""Consequences of a change that has not happened: of a policy, permissions, a role, or a vhost.

    GET /api/consequences/policies/VHOST/NAME      queues and exchanges that change, and how
    POST /api/consequences/policies/VHOST/NAME     the same, if the policy in the body is set
    GET /api/consequences/permissions/VHOST/USER   rights, connections and sessions of a user
    GET /api/consequences/roles/NAME               users, connections and sessions that lose rights
    GET /api/consequences/vhosts/NAME              objects and messages that are deleted

right_consequences.py has the consequences of permissions, topic rules and roles that are set.

Nothing in the broker changes. The work is done in slices, and the lists in the answers are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.access.roles import Role
from broker.access.users import User
from broker.routing.topic_history import HistorySum
from broker.stream.queue import StreamQueue
from broker.vhost.vhost import VirtualHost
from trellis.http.management.answers import Call, Row
from trellis.http.management.permissions import user_with_permissions
from trellis.http.management.policies import given_policy, known_policy
from trellis.http.management.policy_change import SHOWN, PolicyChange
from trellis.http.management.roles import known_role
from trellis.http.management.topology import count_messages

# -- policies


async def policy(call: Call) -> Row:
    """Return which queues and exchanges change if the policy that the path names is deleted.

    The answer has the values of each changed key before and after the deletion; null means that the
    key is not set. `dropped` and `dead_lettered` count the messages that the queues lose by the
    deletion (policy_change.py).
    """
    vhost, policy = known_policy(call)
    return await _policy_row(call, PolicyChange(vhost, policy.name, None))


async def new_policy(call: Call) -> Row:
    """Return which queues and exchanges change if the policy in the body is set.

    The body is that of `PUT /api/policies/VHOST/NAME`. The answer has the fields of `policy`.
    """
    vhost, policy = given_policy(call)
    return await _policy_row(call, PolicyChange(vhost, policy.name, policy))


async def _policy_row(call: Call, change: PolicyChange) -> Row:
    async with call.slice() as work:
        for _ in change.steps():
            if work.over:
                await work.pause()
    return change.row


# -- permissions and roles


async def permission(call: Call) -> Row:
    """Return what a user loses if its permissions in a virtual host are revoked.

    `configure`, `write`, `read` and `rules` are the user's present patterns and topic rules in the
    virtual host. After the revocation, the rights of the role `role` apply; if `role` is "", the
    user may not use the virtual host any more. `connections`, `sessions` and `messages` count the
    user's open connections, MQTT sessions, and the messages of these sessions.
    """
    vhost, user = user_with_permissions(call)
    role = user.role
    decides = role is not None and vhost.name in role.grants
    configure, write, read = user.permissions[vhost.name]
    return {
        "user": user.name,
        "vhost": vhost.name,
        "configure": configure,
        "write": write,
        "read": read,
        "rules": user.rules.get(vhost.name, []),
        "role": role.name if role is not None and decides else "",
        **await count_clients(call, vhost, {user.name}),
    }


async def role(call: Call) -> Row:
    """Return which users lose rights if the role that the path names is deleted.

    With `vhost` in the query, return which users lose rights if the role loses its permissions in
    this virtual host only. For each virtual host, `losing` counts the users of the role that have
    no permissions of their own in this virtual host, and so may not use it any more.
    """
    candidate = known_role(call)
    wanted = call.query.get("vhost")
    users = await users_of_role(call, candidate)
    rows = []
    for name, grant in list(candidate.grants.items()):
        vhost = call.broker.vhosts.get(name)
        if vhost is not None and wanted in (None, name):
            losing = {user.name for user in users if name not in user.permissions}
            clients = await count_clients(call, vhost, losing)
            rows.append({"vhost": name, **grant.row, "losing": len(losing), **clients})
    return {"role": candidate.name, "users": len(users), "vhosts": rows}


async def users_of_role(call: Call, role: Role) -> list[User]:
    """Return the users that have a role, without the users that the settings define."""
    users: list[User] = []
    async with call.slice() as work:
        for user in list(call.broker.users.by_name.values()):
            if user.role is role and user.name not in call.node.accounts.settings_accounts:
                users.append(user)
            if work.over:
                await work.pause()
    return users


async def count_clients(call: Call, vhost: VirtualHost, users: set[str]) -> Row:
    """Count the open connections and the MQTT sessions of some users in a virtual host."""
    counts = {"connections": 0, "sessions": 0, "messages": 0}
    async with call.slice() as work:
        for front in call.node.fronts:
            for connection in list(front.connections):
                owner, name = connection.owner
                counts["connections"] += name == vhost.name and owner in users
                if work.over:
                    await work.pause()
        for session in call.node.mqtt.sessions.all():
            if session.vhost is vhost and session.user in users:
                counts["sessions"] += 1
                counts["messages"] += int(session.inbox.depth) + int(session.in_flight.count)
            if work.over:
                await work.pause()
    return counts


# -- virtual hosts


async def vhost(call: Call) -> Row:
    """Return what is deleted with the virtual host that the path names.

    `published` counts the messages that were published to the virtual host since the time `since`,
    about an hour ago; the publishers would be disconnected. `deepest` are the queues with the most
    messages.
    """
    candidate = call.vhost(call.path_parameters[0])
    ready, unacknowledged = await count_messages(candidate)
    counts = {
        "messages": ready + unacknowledged,
        "queues": 0,
        "streams": 0,
        "rows": 0,
        "exchanges": sum(not name.startswith("amq.") for name in candidate.exchanges if name),
        "policies": len(candidate.policies.by_name) + len(candidate.policies.operator_by_name),
        "retained": len(candidate.retained),
        "sessions": 0,
        "connections": 0,
        "users": 0,
        "published": 0,
    }
    deepest: list[Row] = []
    await call.node.topic_collector.collect()
    history = HistorySum(call.broker.history)
    async with call.slice() as work:
        for step in _counting(call, candidate, counts, deepest, history):
            assert step is None
            if work.over:
                await work.pause()
    return {
        "vhost": candidate.name,
        **counts,
        "since": int(history.since),
        "deepest": _deepest(deepest),
    }


def _deepest(rows: list[Row]) -> list[Row]:
    """Return the rows of the queues that have the most messages: at most SHOWN."""
    return sorted(rows, key=lambda row: (-row["messages"], row["name"]))[:SHOWN]


def _counting(
    call: Call, vhost: VirtualHost, counts: dict[str, int], deepest: list[Row], history: HistorySum
) -> Iterator[None]:
    """Add the objects of a virtual host to `counts`, and the longest queues to `deepest`.

    `history` sums the publications of the last hour. Each `next` on the iterator does one step.
    """
    for queue in list(vhost.queues.values()):
        if isinstance(queue, StreamQueue):
            counts["streams"] += 1
            counts["rows"] += int(queue.depth)
        else:
            counts["queues"] += 1
            if queue.depth:
                deepest.append({"name": queue.name, "messages": int(queue.depth)})
                if len(deepest) >= 10 * SHOWN:
                    deepest[:] = _deepest(deepest)
        yield None
    for session in call.node.mqtt.sessions.all():
        counts["sessions"] += session.vhost is vhost
        yield None
    for front in call.node.fronts:
        for connection in list(front.connections):
            counts["connections"] += connection.owner[1] == vhost.name
            yield None
    for user in list(call.broker.users.by_name.values()):
        counts["users"] += vhost.name in user.permissions or user.role_grant(vhost.name) is not None
        yield None
    yield from history.steps()
    for (name, _), keys in history.counts.items():
        if name == vhost.name:
            counts["published"] += sum(keys.values())
        yield None
    for queue in list(vhost.queues.values()):
        counts["published"] += history.direct(vhost.name, queue.name)
        yield None
