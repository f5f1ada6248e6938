"""`trellis users` and `trellis permissions`: users of a running broker and their permissions.

Users that the settings define are listed with the other users. To change them, change the settings;
the broker reads its settings again at SIGHUP.
"""

from __future__ import annotations

import argparse
import getpass
import shlex
import sys
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
from trellis.cli.api_client import ApiClient, ApiRefused
from trellis.cli.confirming import add_yes, confirm, confirm_losses
from trellis.cli.consequences import permission_lines
from trellis.cli.parsing import CommandError, Commands, Parser
from trellis.cli.readable import count_text
from trellis.cli.right_consequences import permission_change_lines, tags_lines
from trellis.cli.user_file import FIELDS
from trellis.cli.user_import import import_users
from trellis.settings.errors import nearest
from trellis.settings.loading import read_password

#: HTTP status of a request whose login failed.
_UNAUTHORIZED = 401
TAGS = ("administrator", "monitoring", "policymaker", "management")


def add(commands: Commands) -> None:
    """Add the parsers of the commands users and permissions."""
    _add_users(commands)
    _add_permissions(commands)


def _add_users(commands: Commands) -> None:
    users = add_group(commands, "users", "list, add, change and delete users of a running broker")
    add_json(add_action(users, "users", "list", list_users, "list users"))
    command = add_action(
        users,
        "users",
        "add",
        add_user,
        "add a user",
        "NAME [--tags A,B] [--new-password-file FILE]",
    )
    _add_name(command)
    command.add_argument(
        "--tags",
        default="",
        metavar="A,B",
        help=f"tags, which permit HTTP requests, separated by commas: {', '.join(TAGS)} [none]",
    )
    _add_password(command)
    add_result(command)
    command = add_action(
        users,
        "users",
        "change-password",
        change_password,
        "change the password of a user",
        "NAME [--new-password-file FILE]",
    )
    _add_name(command, sets_user=True)
    _add_password(command)
    add_result(command)
    command = add_action(
        users,
        "users",
        "tags",
        set_tags,
        "replace the tags of a user, which permit HTTP requests",
        "NAME [TAG]... [--yes]",
        "If the user loses tags, the command lists them, and asks for a confirmation.",
    )
    _add_name(command, sets_user=True)
    command.add_argument(
        "tags", metavar="TAG", nargs="*", help=f"tag: {', '.join(TAGS)} [none: remove all]"
    )
    add_yes(command)
    add_result(command)
    command = add_action(
        users,
        "users",
        "import",
        import_users,
        "add or change many users, with permissions and topic rules, from a CSV or JSON file",
        "FILE [--dry-run] [--yes] [--json]",
        "If existing users change, the command lists the changes, and asks for a confirmation.",
    )
    command.add_argument(
        "file",
        metavar="FILE",
        help="CSV with a header, or a JSON list of objects; - is standard input; fields: "
        + ", ".join(FIELDS),
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing: report the changes and the refused definitions",
    )
    add_yes(command)
    add_result(command)
    command = add_action(
        users,
        "users",
        "delete",
        delete_user,
        "delete a user and close its connections",
        "NAME [--yes]",
    )
    _add_name(command)
    add_yes(command)
    add_result(command)


def _add_permissions(commands: Commands) -> None:
    permissions = add_group(
        commands, "permissions", "list, set and clear permissions of users of a running broker"
    )
    command = add_action(
        permissions,
        "permissions",
        "list",
        list_permissions,
        "list permissions and topic rules",
        "[USER]",
    )
    command.add_argument("name", metavar="USER", nargs="?", help="user to list [all users]")
    add_json(command)
    command = add_action(
        permissions,
        "permissions",
        "set",
        set_permission,
        "grant a user access to a virtual host, with patterns of the names that the user may "
        "configure, write and read",
        "USER CONFIGURE WRITE READ [--yes] [--vhost NAME]",
        "If the user loses rights, the command lists them, and asks for a confirmation.",
    )
    _add_name(command, "USER", sets_user=True)
    add_patterns(command)
    add_yes(command)
    add_result(command)
    add_vhost(command, 1)
    command = add_action(
        permissions,
        "permissions",
        "clear",
        clear_permission,
        "revoke a user's access to a virtual host",
        "USER [--yes] [--vhost NAME]",
    )
    _add_name(command, "USER")
    add_yes(command)
    add_result(command)
    add_vhost(command, 1)
    command = add_action(
        permissions,
        "permissions",
        "topic",
        set_rules,
        "replace the topic rules of a user in a virtual host; a user without topic rules may use "
        "all topics",
        "USER (RULE... | --clear) [--yes] [--vhost NAME]",
        "If the user loses topics or reserved client identifiers, the command lists them, and "
        "asks for a confirmation.",
    )
    _add_name(command, "USER", sets_user=True)
    command.add_argument(
        "rules",
        metavar="RULE",
        nargs="*",
        help='topic rule, such as "allow publish sensors/{username}/#" (the first rule that '
        'matches a topic decides) or "reserve client {username}-*"',
    )
    command.add_argument("--clear", action="store_true", help="remove all rules of the user")
    add_yes(command)
    add_result(command)
    add_vhost(command)
    _add_readers(permissions)


def _add_readers(permissions: Commands) -> None:
    command = add_action(
        permissions,
        "permissions",
        "readers",
        list_readers,
        "list the users that may read topics of an MQTT topic filter, and the rules that decide",
        "FILTER [--vhost NAME] [--client-id ID]",
    )
    command.add_argument("filter", metavar="FILTER", help="topic filter, such as plant/+/secret")
    add_vhost(command)
    command.add_argument(
        "--client-id",
        default="",
        metavar="ID",
        help="client identifier that stands for {client_id} in topic rules [rules with {client_id} "
        "permit no topic]",
    )
    add_json(command)


def _add_name(command: Parser, metavar: str = "NAME", sets_user: bool = False) -> None:
    """Add the argument for a user's name.

    If `sets_user` is True, an error about a missing user names the command that adds the user.
    """
    command.add_argument("name", metavar=metavar, help="name of the user")
    command.set_defaults(sets_user=sets_user)


def _add_password(command: Parser) -> None:
    command.add_argument(
        "--new-password-file",
        metavar="FILE",
        help="file whose first line is the new password "
        "[a prompt on a terminal, else the first line of standard input]",
    )


def _new_password(arguments: argparse.Namespace) -> str:
    """Return the new password of the user NAME: from --new-password-file, a prompt or stdin.

    Raises CommandError if the new password is empty. (--password is the password for the login.)
    """
    if arguments.new_password_file is not None:
        try:
            return read_password(arguments.new_password_file)
        except ValueError as error:
            raise CommandError(f"--new-password-file: {error}", 2) from None
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = getpass.getpass(f"password of {arguments.name}: ")
        if getpass.getpass("again: ") != password:
            raise CommandError("the typed passwords differ; type one password twice", 2)
    if not password:
        raise CommandError("the new password is empty; type one, or give --new-password-file", 2)
    return password


def _ask_before_password(arguments: argparse.Namespace, *request: str) -> Any:
    """Send the first request of a command that sets a password, and return the answer.

    An operator may confuse the new password with --password, the password for the login. So the
    error of a failed login explains the difference. Raises CommandError.
    """
    try:
        return ask(arguments, *request)
    except ApiRefused as refusal:
        if refusal.status != _UNAUTHORIZED:
            raise
        raise CommandError(
            f"{refusal}; --password is the password of the user that logs in, and the new password "
            f"of {arguments.name} comes from a prompt, the standard input or --new-password-file"
        ) from None


def _checked_tags(tags: list[str]) -> list[str]:
    for tag in tags:
        if tag not in TAGS:
            raise CommandError(f"there is no tag {tag}; the nearest is {nearest(tag, TAGS)}", 2)
    return tags


def list_users(arguments: argparse.Namespace) -> int:
    """Print all users with their tags; `from` shows if the broker or the settings define a user."""
    rows = [{"from": "broker", **row} for row in ask(arguments, "GET", "users")]
    show(rows, ("name", "tags", "role", "from"), arguments, "no users")
    return 0


def add_user(arguments: argparse.Namespace) -> int:
    """Add a user with a password and tags. Raises CommandError if the name exists."""
    name = arguments.name
    tags = _checked_tags([tag for tag in arguments.tags.split(",") if tag])
    if any(row["name"] == name for row in _ask_before_password(arguments, "GET", "users")):
        raise CommandError(
            f"there is a user {name} already; change this user with `trellis users "
            "change-password` and `trellis users tags`"
        )
    ask(arguments, "PUT", "users", name, body={"password": _new_password(arguments), "tags": tags})
    text = (
        f"user {name} is added. It cannot connect yet: grant it a virtual host with "
        f"`trellis permissions set {shlex.quote(name)} '.*' '.*' '.*' --vhost /`"
    )
    print_result(arguments, text, user=name, tags=tags, changed=True)
    return 0


def change_password(arguments: argparse.Namespace) -> int:
    """Change the password of a user; keep the user's tags."""
    tags = _ask_before_password(arguments, "GET", "users", arguments.name)["tags"]
    body = {"password": _new_password(arguments), "tags": tags}
    ask(arguments, "PUT", "users", arguments.name, body=body)
    text = f"changed the password of user '{arguments.name}'"
    print_result(arguments, text, user=arguments.name, changed=True)
    return 0


def set_tags(arguments: argparse.Namespace) -> int:
    """Replace the tags of a user; if the user loses tags, ask for a confirmation first."""
    tags = _checked_tags(arguments.tags)
    before = ask(arguments, "GET", "users", arguments.name)["tags"]
    confirm_losses(arguments, lambda: tags_lines(arguments.name, before, tags))
    ask(arguments, "PUT", "users", arguments.name, body={"tags": tags})
    text = (
        f"user '{arguments.name}' has {_tags_text(tags)} now, instead of {_tags_text(before)}"
        if tags != before
        else f"user '{arguments.name}' has {_tags_text(tags)}, as before"
    )
    print_result(arguments, text, user=arguments.name, tags=tags, changed=tags != before)
    return 0


def _tags_text(tags: list[str]) -> str:
    if len(tags) == 1:
        return f"the tag {tags[0]}"
    return f"the tags {', '.join(tags)}" if tags else "no tags"


def delete_user(arguments: argparse.Namespace) -> int:
    """Delete a user, after a confirmation; the broker closes the user's connections."""
    client = ApiClient(arguments)
    client.json("GET", "users", arguments.name)
    connections = len(client.json("GET", "connections", "username", arguments.name))
    closed = f"{count_text(connections, 'connection')} of the user will be closed"
    line = f"user '{arguments.name}' will be deleted: {closed}, and its MQTT sessions will end"
    confirm(arguments, [line])
    client.request("DELETE", "users", arguments.name)
    text = f"deleted user '{arguments.name}' and closed {count_text(connections, 'connection')}"
    print_result(arguments, text, user=arguments.name, connections=connections, changed=True)
    return 0


def list_permissions(arguments: argparse.Namespace) -> int:
    """Print the permissions and topic rules of one user, or of all users.

    A user with topic rules but without permissions cannot connect, and has empty columns of
    permissions.
    """
    rows = ask(arguments, "GET", "permissions")
    rules = {
        (row["user"], row["vhost"]): row["rules"] for row in ask(arguments, "GET", "topic-rules")
    }
    granted = {(row["user"], row["vhost"]) for row in rows}
    nothing = dict.fromkeys(PERMISSIONS)
    rows += [
        {"user": user, "vhost": vhost, **nothing}
        for user, vhost in rules
        if (user, vhost) not in granted
    ]
    chosen = [
        row | {"rules": "; ".join(rules.get((row["user"], row["vhost"]), []))}
        for row in rows
        if arguments.name in (None, row["user"])
    ]
    if arguments.name is not None and not chosen:
        ask(arguments, "GET", "users", arguments.name)  # Fails if the user does not exist.
    columns = ("user", "vhost", "configure", "write", "read", "rules", "role")
    show(chosen, columns, arguments, "no permissions")
    return 0


def list_readers(arguments: argparse.Namespace) -> int:
    """Print the users that may read some or all topics of a filter."""
    client, path = ApiClient(arguments), ("topic-readers", arguments.vhost)
    query = {"filter": arguments.filter, "client_id": arguments.client_id}
    data = client.request("GET", *path, query=query)
    rows = client.decode(data, list[dict[str, Any]], "answer", *path)
    shown = rows if arguments.json else [row | {"rules": "; ".join(row["rules"])} for row in rows]
    columns = ("user", "reads", "permission", "rules")
    show(shown, columns, arguments, f"no user may read a topic of '{arguments.filter}'")
    return 0


def set_permission(arguments: argparse.Namespace) -> int:
    """Grant a user access to a virtual host, or replace the user's permissions there.

    If the user loses rights, ask for a confirmation first.
    """
    body = {name: getattr(arguments, name) for name in PERMISSIONS}
    _confirm_losses(arguments, body)
    ask(arguments, "PUT", "permissions", arguments.vhost, arguments.name, body=body)
    patterns = ", ".join(f"{name} '{pattern}'" for name, pattern in body.items())
    text = f"user '{arguments.name}' may use vhost '{arguments.vhost}': {patterns}"
    fields = {"user": arguments.name, "vhost": arguments.vhost, **body}
    print_result(arguments, text, **fields, changed=True)
    return 0


def _confirm_losses(arguments: argparse.Namespace, body: dict[str, Any]) -> None:
    """Ask for a confirmation if the user loses rights. `body` has the new permissions or rules."""
    client = ApiClient(arguments)
    vhost, user = arguments.vhost, arguments.name
    confirm_losses(arguments, lambda: permission_change_lines(client, vhost, user, body))


def clear_permission(arguments: argparse.Namespace) -> int:
    """Revoke a user's access to a virtual host, after a confirmation."""
    client = ApiClient(arguments)
    confirm(arguments, permission_lines(client, arguments.vhost, arguments.name))
    client.request("DELETE", "permissions", arguments.vhost, arguments.name)
    text = f"user '{arguments.name}' may not use vhost '{arguments.vhost}' any more"
    print_result(arguments, text, user=arguments.name, vhost=arguments.vhost, changed=True)
    return 0


def set_rules(arguments: argparse.Namespace) -> int:
    """Replace the topic rules of a user in a virtual host, or remove all of them (`--clear`).

    If the user loses topics, ask for a confirmation first. Raises CommandError unless the arguments
    have either rules or `--clear`.
    """
    if bool(arguments.rules) == arguments.clear:
        raise CommandError(
            "give either the rules or --clear, which removes all rules: the user may then use "
            "every topic",
            2,
        )
    body = {"rules": arguments.rules}
    _confirm_losses(arguments, body)
    ask(arguments, "PUT", "topic-rules", arguments.vhost, arguments.name, body=body)
    where = f"user '{arguments.name}' in vhost '{arguments.vhost}'"
    rules = count_text(len(arguments.rules), "topic rule")
    text = (
        f"{where} has {rules} now"
        if arguments.rules
        else f"{where} has no topic rules any more, and may use all topics"
    )
    fields = {"user": arguments.name, "vhost": arguments.vhost, "rules": arguments.rules}
    print_result(arguments, text, **fields, changed=True)
    return 0
