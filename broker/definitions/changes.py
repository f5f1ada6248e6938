"""The existing objects that an import of definitions changes, for a trial import.

For each object of the document, `state_of` is called twice: before the trial takes the object, for
the state in the real broker, and afterwards, for the state in the broker of the trial. `change_of`
compares the two states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.broker import Broker
from broker.vhost.parameters import GLOBAL, OPERATOR_POLICY

Row = Mapping[str, object]
State = dict[str, object]

#: The sections whose objects an import can change, and the noun for such an object. An import does
#: not change existing exchanges, queues and bindings.
NOUNS: Final = {
    "vhosts": "vhost",
    "roles": "role",
    "users": "user",
    "permissions": "permissions of user",
    "topic_permissions": "topic permission of user",
    "topic_rules": "topic rules of user",
    "parameters": "parameter",
    "global_parameters": "global parameter",
    "operator_policies": "operator policy",
    "policies": "policy",
}
#: Fields of a state that may contain secrets, so that a change shows no values.
_SECRET: Final = ("password", "value")
#: Largest number of fields that a change shows: a role has a field for each virtual host.
_FIELDS_MAX: Final = 20
#: Largest number of characters of a value that a change shows.
_VALUE_MAX: Final = 80


class ImportChange:
    """An existing object that an import changes.

    `section` is the section of the document and `name` the name of the object or of its user.
    `text` names the object and the changed fields, with their values before and after.
    """

    __slots__ = ("name", "section", "text")

    def __init__(self, section: str, name: str, text: str) -> None:
        self.section = section
        self.name = name
        self.text = text


def change_of(
    section: str, row: Row, before: State | None, after: State | None
) -> ImportChange | None:
    """Return the change of the object that `row` names; None if nothing that exists changes.

    A description, tags or a default queue type that a virtual host gets for the first time change
    nothing that exists: each document of RabbitMQ has them for the virtual host `/`.
    """
    if before is None or after is None:
        return None
    fields = [
        f"new {field}"
        if field in _SECRET
        else f"{field} {_shown(before, field)} -> {_shown(after, field)}"
        for field in {**before, **after}
        if before.get(field) != after.get(field)
        and (section != "vhosts" or field in before or field == "limits")
    ]
    if not fields:
        return None
    more = len(fields) - _FIELDS_MAX
    if more > 0:
        fields[_FIELDS_MAX:] = [f"further fields: {more}"]
    text = f"{label_of(section, row)}: {', '.join(fields)}"
    return ImportChange(section, _name(section, row), text)


def label_of(section: str, row: Row) -> str:
    """Return the text that names an object, such as `permissions of user 'ann' in vhost '/'`."""
    label = f"{NOUNS[section]} '{_name(section, row)}'"
    if section == "parameters":
        label = f"{row.get('component')} {label}"
    if "exchange" in row:
        label += f" for exchange '{row['exchange']}'"
    return f"{label} in vhost '{row['vhost']}'" if "vhost" in row else label


def _name(section: str, row: Row) -> str:
    return str(row.get("name" if "name" in row else "user", ""))


def _shown(state: State, field: str) -> str:
    if field not in state:
        return "not set"
    text = repr(state[field])
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}..."


def state_of(broker: Broker, section: str, row: object) -> State | None:
    """Return the state of the object that `row` names, as fields; None if it does not exist.

    A user without topic rules may use all topics, so missing topic rules also have a state. If a
    user has no permissions of its own, the permissions of its role count.
    """
    if not isinstance(row, dict) or section not in NOUNS:
        return None
    vhost = broker.vhosts.get(str(row.get("vhost", "/" if section == "global_parameters" else "")))
    name = str(row.get("name", ""))
    if section == "vhosts":
        known = broker.vhosts.get(name)
        return None if known is None else dict(known.options.row)
    if section == "roles":
        role = broker.users.roles.by_name.get(name)
        return None if role is None else {host: one.row for host, one in role.grants.items()}
    if section in ("users", "permissions", "topic_permissions", "topic_rules"):
        return _state_of_user(broker, section, row)
    if vhost is None:
        return None
    component = str(row.get("component", GLOBAL if section == "global_parameters" else ""))
    if component == "vhost-limits":
        return dict(vhost.options.limits)
    policies = vhost.policies
    if section == "operator_policies" or component == OPERATOR_POLICY:
        policy = policies.operator_by_name.get(name)
        return None if policy is None else dict(policy.row)
    if section == "policies" or component == "policy":
        policy = policies.by_name.get(name)
        return None if policy is None else dict(policy.row)
    values = vhost.parameters.values
    return {"value": values[component, name]} if (component, name) in values else None


def _state_of_user(broker: Broker, section: str, row: Row) -> State | None:
    """Return the state of a user, or of the user's rights in a virtual host."""
    by_name = broker.users.by_name
    user = by_name.get(str(row.get("name" if section == "users" else "user", "")))
    vhost = str(row.get("vhost", ""))
    if user is None:
        return None
    if section == "users":
        return {
            "password": user.password_hash,
            "tags": list(user.tags),
            "limits": dict(user.limits),
            "role": user.role_name,
        }
    if section == "topic_permissions":
        pair = user.topics.get(vhost, {}).get(str(row.get("exchange", "")))
        return None if pair is None else {"write": pair[0], "read": pair[1]}
    grant = user.role_grant(vhost)
    permission = user.permissions.get(vhost) or (None if grant is None else grant.permission)
    if section == "permissions":
        if permission is None:
            return None
        return dict(zip(("configure", "write", "read"), permission, strict=True))
    has_own = vhost in user.permissions
    return {"rules": list(user.rules.get(vhost, ()))} if has_own or vhost in user.rules else None
