"""`trellis roles`: named sets of permissions and topic rules that many users share."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from trellis.cli.actions import (
    PERMISSIONS,
    add_action,
    add_group,
    add_json,
    add_patterns,
    add_result,
    add_vhost,
    ask,
    print_result,
    show,
)
from trellis.cli.api_client import ApiClient
from trellis.cli.confirming import add_yes, confirm, confirm_losses
from trellis.cli.consequences import role_lines
from trellis.cli.parsing import CommandError, Commands, Parser
from trellis.cli.readable import count_text
from trellis.cli.right_consequences import assignment_lines, role_change_lines


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis roles`."""
    roles = add_group(
        commands, "roles", "list, set and delete roles: permissions that many users share"
    )
    add_json(
        add_action(roles, "roles", "list", list_roles, "list roles, with the number of their users")
    )
    _add_set(roles)
    command = add_action(
        roles,
        "roles",
        "clear",
        clear_role,
        "remove the permissions of a role in a virtual host",
        "NAME [--yes] [--vhost NAME]",
    )
    _add_name(command)
    add_yes(command)
    add_result(command)
    add_vhost(command)
    command = add_action(
        roles, "roles", "delete", delete_role, "delete a role that no user has", "NAME [--yes]"
    )
    _add_name(command)
    add_yes(command)
    add_result(command)
    command = add_action(
        roles,
        "roles",
        "assign",
        assign_role,
        "give users a role instead of the role that they have",
        "(NAME | --none) USER... [--yes]",
        "If users lose rights of their present role, the command lists these rights, and asks for "
        "a confirmation.",
    )
    command.add_argument("name", metavar="NAME", nargs="?", help="name of the role")
    command.add_argument("--none", action="store_true", help="take the users' role away")
    command.add_argument("members", metavar="USER", nargs="+", help="name of a user")
    command.set_defaults(sets_user=True)
    add_yes(command)
    add_result(command)


def _add_set(roles: Commands) -> None:
    command = add_action(
        roles,
        "roles",
        "set",
        set_role,
        "create a role, or replace its permissions and topic rules in a virtual host",
        "NAME CONFIGURE WRITE READ [--rule RULE]... [--yes] [--vhost NAME]",
        "If users of the role lose rights, the command lists these rights, and asks for a "
        "confirmation.",
    )
    _add_name(command)
    add_patterns(command)
    command.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="RULE",
        help='topic rule such as "allow publish sensors/{username}/#"; may be repeated; the first '
        "rule that matches a topic decides [all topics are permitted]",
    )
    add_yes(command)
    add_result(command)
    add_vhost(command)


def _add_name(command: Parser) -> None:
    command.add_argument("name", metavar="NAME", help="name of the role")


def list_roles(arguments: argparse.Namespace) -> int:
    """Print the roles, one line for each virtual host of a role."""
    roles = ask(arguments, "GET", "roles")
    if arguments.json:
        show(roles, ("name",), arguments, "")
        return 0
    nothing: dict[str, Any] = {"": {"configure": "", "write": "", "read": "", "rules": []}}
    rows = [
        {
            "name": role["name"],
            "users": role["users"],
            "vhost": vhost,
            **grant,
            "rules": "; ".join(grant["rules"]),
        }
        for role in roles
        for vhost, grant in (role["vhosts"] or nothing).items()
    ]
    columns = ("name", "users", "vhost", "configure", "write", "read", "rules")
    show(rows, columns, arguments, "no roles")
    return 0


def _present(arguments: argparse.Namespace, name: str) -> dict[str, Any] | None:
    """Return what a role grants, by virtual host; None if the role does not exist."""
    for role in ask(arguments, "GET", "roles"):
        if role["name"] == name:
            vhosts: dict[str, Any] = role["vhosts"]
            return vhosts
    return None


def set_role(arguments: argparse.Namespace) -> int:
    """Create a role, or replace what it grants in one virtual host.

    If users of the role lose rights, ask for a confirmation first.
    """
    known = _present(arguments, arguments.name)
    grant = {name: getattr(arguments, name) for name in PERMISSIONS}
    vhosts = (known or {}) | {arguments.vhost: grant | {"rules": arguments.rule}}
    if known is not None:
        client = ApiClient(arguments)
        confirm_losses(arguments, lambda: role_change_lines(client, arguments.name, vhosts))
    ask(arguments, "PUT", "roles", arguments.name, body={"vhosts": vhosts})
    text = f"role '{arguments.name}' has new permissions in vhost '{arguments.vhost}'"
    if known is None:
        text = (
            f"role {arguments.name} is created. Give it to users with `trellis roles assign "
            f"{shlex.quote(arguments.name)} USER...`"
        )
    fields = {"role": arguments.name, "vhost": arguments.vhost, **grant, "rules": arguments.rule}
    print_result(arguments, text, **fields, changed=True)
    return 0


def clear_role(arguments: argparse.Namespace) -> int:
    """Remove what a role grants in one virtual host, after a confirmation.

    Raises CommandError if the role grants nothing there.
    """
    known = _present(arguments, arguments.name)
    if known is None or arguments.vhost not in known:
        raise CommandError(
            f"role '{arguments.name}' has no permissions in vhost '{arguments.vhost}'; next: "
            "trellis roles list"
        )
    confirm(arguments, role_lines(ApiClient(arguments), arguments.name, arguments.vhost))
    left = {vhost: grant for vhost, grant in known.items() if vhost != arguments.vhost}
    ask(arguments, "PUT", "roles", arguments.name, body={"vhosts": left})
    text = f"role '{arguments.name}' has no permissions in vhost '{arguments.vhost}' any more"
    print_result(arguments, text, role=arguments.name, vhost=arguments.vhost, changed=True)
    return 0


def delete_role(arguments: argparse.Namespace) -> int:
    """Delete a role, after a confirmation. The broker refuses to delete a role that a user has."""
    client = ApiClient(arguments)
    if client.json("GET", "roles", arguments.name)["users"] == 0:
        confirm(arguments, role_lines(client, arguments.name))
    client.request("DELETE", "roles", arguments.name)
    print_result(arguments, f"deleted role '{arguments.name}'", role=arguments.name, changed=True)
    return 0


def assign_role(arguments: argparse.Namespace) -> int:
    """Give users a role, or with --none take their role away.

    If users lose rights of their present role, ask for a confirmation first. Raises CommandError
    if the arguments name neither a role nor --none.
    """
    names, role = list(arguments.members), arguments.name
    if arguments.none:
        names, role = [role, *names] if role else names, ""
    elif role is None:
        raise CommandError(
            f"give a role and at least one user, such as `trellis roles assign NAME {names[0]}`", 2
        )
    client = ApiClient(arguments)
    confirm_losses(arguments, lambda: assignment_lines(client, role, names))
    for name in names:
        tags = ask(arguments, "GET", "users", name)["tags"]
        ask(arguments, "PUT", "users", name, body={"tags": tags, "role": role})
    users = count_text(len(names), "user")
    verb = "has" if len(names) == 1 else "have"
    text = f"{users} {verb} role '{role}' now" if role else f"{users} {verb} no role any more"
    print_result(arguments, text, role=role, users=names, changed=True)
    return 0
