"""Consequences of permissions, topic rules and roles that are set: the rights that users lose.

    POST /api/consequences/permissions/VHOST/USER   permissions, topic rules, or both, of one user
    POST /api/consequences/roles/NAME               the permissions and rules of a role
    POST /api/consequences/users/NAME               the role of a user

The body is the body of the PUT request that makes the change, for permissions also with `rules`.
Nothing in the broker changes. right_changes.py compares the rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.access.identity import Identity
from broker.access.roles import RoleGrant, grants_of
from broker.access.rules import UserPermissions
from broker.vhost.vhost import VirtualHost
from trellis.http.management.answers import Call, Row, text
from trellis.http.management.consequences import count_clients, users_of_role
from trellis.http.management.permissions import changeable_user, grant_in_force
from trellis.http.management.right_changes import PATTERNS, lost_rights
from trellis.http.management.roles import role_grants
from trellis.http.management.topic_rules import given_rules
from trellis.http.management.users import known_user, require_changeable

#: Largest number of queues and exchanges that the row of a lost right names.
NAMES_SHOWN: Final = 5


async def new_permission(call: Call) -> Row:
    """Return what a user loses if its permissions, its topic rules, or both are set.

    `lost` has a row for each lost right (right_changes.py). The row of a pattern has `names`, the
    number of present queues and exchanges that the user loses, and `examples` of their names.
    `role` is the role whose permissions decide now; "" if no role decides. `connections`,
    `sessions` and `messages` count the user's clients if it loses a right, and are 0 otherwise.
    """
    vhost, name = changeable_user(call)
    body = call.body()
    stored = call.broker.users.by_name.get(name)
    permission = None if stored is None else stored.permissions.get(vhost.name)
    has_own = permission is not None
    rules: Sequence[str] = () if stored is None else stored.rules.get(vhost.name, ())
    if "rules" in body:
        rules = given_rules(vhost.name, name, body)
    if "rules" not in body or any(right in body for right in PATTERNS):
        configure, write, read = (text(body, right) for right in PATTERNS)
        permission = configure, write, read
    # The constructor refuses invalid patterns and rules.
    new = UserPermissions(name, vhost.name, permission or ("", "", ""), rules)
    before = grant_in_force(call, name, vhost.name)
    # Without a permission of the user's own, its own rules do not apply.
    lost = [] if permission is None else lost_rights(before, RoleGrant(permission, rules))
    if before is not None and any(row["right"] in PATTERNS for row in lost):
        old = UserPermissions(name, vhost.name, before.permission, before.rules)
        await _count_names(call, vhost, lost, old.identity(""), new.identity(""))
    role = "" if has_own or before is None or stored is None else stored.role_name
    clients = await count_clients(call, vhost, {name} if lost else set())
    return {"user": name, "vhost": vhost.name, "role": role, "lost": lost, **clients}


async def _count_names(
    call: Call, vhost: VirtualHost, lost: list[Row], old: Identity, new: Identity
) -> None:
    """Add `names` and `examples` to each row of `lost` that is about a pattern.

    `names` is the number of present queues and exchanges for which the user loses the right of the
    row; `examples` has some of their names. `old` and `new` are the user's identities before and
    after the change.
    """
    rows = [row for row in lost if row["right"] in PATTERNS]
    for row in rows:
        row["names"], row["examples"] = 0, []
    async with call.slice() as work:
        for kind, names in (("queue", list(vhost.queues)), ("exchange", list(vhost.exchanges))):
            for name in names:
                for row in rows:
                    right = row["right"]
                    if old.allows(right, kind, name, vhost.name) and not new.allows(
                        right, kind, name, vhost.name
                    ):
                        row["names"] += 1
                        if len(row["examples"]) < NAMES_SHOWN:
                            row["examples"].append(name)
                if work.over:
                    await work.pause()


async def new_role(call: Call) -> Row:
    """Return what the users of a role lose if the grants in the body replace the role's grants.

    `users` counts the users that have the role. `vhosts` has a row for each virtual host in which
    the role loses a right. In a row, `lost` has the lost rights (right_changes.py), and `losing` is
    the number of users of the role that have no own permissions in the virtual host; the other
    fields count the clients of these users. `tokens` is True if users may log in with tokens: a
    token may name the role, too, and the users of tokens are not counted.
    """
    grants = grants_of(call.body().get("vhosts"))
    for name in grants:
        call.vhost(name)
    role = call.broker.users.roles.by_name.get(call.path_parameters[0])
    users = [] if role is None else await users_of_role(call, role)
    rows = []
    for name, grant in [] if role is None else list(role.grants.items()):
        vhost, lost = call.broker.vhosts.get(name), lost_rights(grant, grants.get(name))
        if vhost is not None and lost:
            losing = {user.name for user in users if name not in user.permissions}
            clients = await count_clients(call, vhost, losing)
            rows.append({"vhost": name, "lost": lost, "losing": len(losing), **clients})
    return {
        "role": call.path_parameters[0],
        "users": len(users),
        "tokens": call.node.tokens is not None,
        "vhosts": rows,
    }


async def new_user_role(call: Call) -> Row:
    """Return what a user loses if it gets the role in the body instead of its present role.

    The role "" removes the present role. `vhosts` has a row for each virtual host in which the user
    loses a right. In a row, `lost` has the lost rights (right_changes.py), and the other fields
    count the user's clients.
    """
    name = call.path_parameters[0]
    known_user(call, name)
    require_changeable(call, name)
    role = text(call.body(), "role")
    user = call.broker.users.by_name[name]
    grants = call.broker.users.roles.find(role).grants if role else {}
    rows = []
    for granted, grant in list(role_grants(call, user)):
        vhost, lost = call.broker.vhosts.get(granted), lost_rights(grant, grants.get(granted))
        if vhost is not None and lost:
            clients = await count_clients(call, vhost, {name})
            rows.append({"vhost": granted, "lost": lost, **clients})
    return {"user": name, "role": user.role_name, "new_role": role, "vhosts": rows}
