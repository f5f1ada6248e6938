"""The rights that users lose if permissions, topic rules, tags or roles are set.

The broker answers `POST /api/consequences/permissions/...`, `.../roles/...` and `.../users/...`,
and changes nothing. A command asks for a confirmation only if a right is lost, so each function
here returns no line if no right is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trellis.cli.api_client import ApiClient
from trellis.cli.consequences import SHOWN, grant_text
from trellis.cli.readable import count_text

Row = dict[str, Any]

#: Words for a pattern that selects no name, and for rules that permit every topic.
_NO_NAME: Final = "'', which selects no name"
_NO_RULE: Final = "none, so that all topics are permitted"


def permission_change_lines(client: ApiClient, vhost: str, user: str, body: Row) -> list[str]:
    """Return the lines about the rights that a user loses in a virtual host.

    `body` has the new permissions, as `configure`, `write` and `read`, or the new topic `rules`.
    """
    answer: Row = client.json("POST", "consequences", "permissions", vhost, user, body=body)
    if not answer["lost"]:
        return []
    role = f" from role '{answer['role']}'" if answer["role"] else ""
    lines = [f"user '{user}' will lose rights{role} in vhost '{vhost}':"]
    return [*lines, *_lost_lines(answer["lost"]), _checked_line(answer)]


def role_change_lines(client: ApiClient, name: str, vhosts: Row) -> list[str]:
    """Return the lines about the rights that the users of a role lose.

    `vhosts` has the new grants of the role, by virtual host. Return [] if no user can lose a right.
    If users may log in with tokens, a lost grant always has lines: a token may name the role.
    """
    body = {"vhosts": vhosts}
    answer: Row = client.json("POST", "consequences", "roles", name, body=body)
    lines: list[str] = []
    for row in answer["vhosts"]:
        if not row["losing"] and not answer["tokens"]:
            continue
        users, losing = count_text(answer["users"], "user"), count_text(row["losing"], "user")
        have = "has" if answer["users"] == 1 else "have"
        lines += [
            f"role '{name}' will grant fewer rights in vhost '{row['vhost']}':",
            *_lost_lines(row["lost"]),
            (
                f"{users} {have} role '{name}'; users that will lose these rights, because they "
                f"have no permissions of their own in vhost '{row['vhost']}': {losing}"
            ),
            _checked_line(row),
        ]
        if answer["tokens"]:
            lines.append(
                f"users whose tokens name role '{name}' will lose these rights, too (the number of "
                "these users is unknown)"
            )
    return lines


def assignment_lines(client: ApiClient, role: str, users: list[str]) -> Iterator[str]:
    """Yield the lines about the rights that users lose if they get a role; "" removes the role.

    At most SHOWN users that lose rights are named.
    """
    losing = 0
    for user in users:
        answer: Row = client.json("POST", "consequences", "users", user, body={"role": role})
        losing += bool(answer["vhosts"])
        if not answer["vhosts"] or losing > SHOWN:
            continue
        for row in answer["vhosts"]:
            yield (
                f"user '{user}' will lose rights from role '{answer['role']}' in vhost "
                f"'{row['vhost']}':"
            )
            yield from _lost_lines(row["lost"])
            yield _checked_line(row)
    if losing > SHOWN:
        yield f"further users that will lose rights: {losing - SHOWN:,}"


def tags_lines(user: str, before: list[str], after: list[str]) -> Iterator[str]:
    """Yield the line about the tags that a user loses."""
    lost = [tag for tag in before if tag not in after]
    if lost:
        yield (
            f"user '{user}' will lose {'the tag' if len(lost) == 1 else 'the tags'} "
            f"{', '.join(lost)}: the HTTP API and the web page will refuse requests that need "
            f"{'it' if len(lost) == 1 else 'them'}"
        )


def _lost_lines(lost: list[Row]) -> Iterator[str]:
    """Yield a line for each lost right; the rows are those of the broker's answer."""
    for row in lost:
        before, after = row["before"], row["after"]
        if row["right"] == "vhost":
            yield f"  access to the virtual host, with these permissions: {grant_text(before)}"
        elif row["right"] == "rules":
            yield from _rule_lines(before, after)
        else:
            line = f"  {row['right']} '{before}' -> {_pattern(after)}"
            if row.get("names"):
                examples = ", ".join(f"'{name}'" for name in row["examples"])
                names = f"{row['names']:,} existing queues and exchanges"
                line += f"; lost for {names}, such as {examples}"
            yield line


def _pattern(text: str) -> str:
    return f"'{text}'" if text else _NO_NAME


def _rule_lines(before: list[str], after: list[str]) -> Iterator[str]:
    """Yield the lines about the topic rules that a change removes and adds.

    `before` and `after` are all topic rules before and after the change.
    """
    if not before:
        yield f"  topic rules: {_NO_RULE} -> {count_text(len(after), 'topic rule')}"
        return
    removed = [rule for rule in before if rule not in after]
    added = [rule for rule in after if rule not in before]
    for verb, rules in (("removed", removed), ("added", added)):
        for rule in rules[:SHOWN]:
            yield f"  topic rule {verb}: '{rule}'"
        if len(rules) > SHOWN:
            yield f"  further topic rules {verb}: {len(rules) - SHOWN:,}"
    if not removed and not added:
        yield "  topic rules: the same rules in another order; the first that matches decides"


def _checked_line(row: Row) -> str:
    """Return the line about the clients whose rights the broker checks again."""
    return (
        "clients whose rights will be checked again: "
        f"{count_text(row['connections'], 'open connection')}, "
        f"{count_text(row['sessions'], 'MQTT session')} with "
        f"{count_text(row['messages'], 'message')}"
    )
