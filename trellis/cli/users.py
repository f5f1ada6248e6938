"""`trellis users` and `trellis permissions`: who may log in, and what they may do, while the broker
runs.

Users of the settings are listed with the others; they are changed in the settings, and SIGHUP reads
those again.
"""

import argparse
import getpass
import sys

from trellis.cli.api_client import add_action, add_group, add_json, add_vhost, ask, show
from trellis.cli.parsing import CommandError, Commands, Parser
from trellis.settings.errors import nearest
from trellis.settings.loading import read_password

TAGS = ("administrator", "monitoring", "policymaker", "management")


def add(commands: Commands) -> None:
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
        help=f"what it may do over HTTP: {', '.join(TAGS)} [nothing]",
    )
    _add_password(command)
    command = add_action(
        users,
        "users",
        "change-password",
        change_password,
        "change a password",
        "NAME [--new-password-file FILE]",
    )
    _add_name(command)
    _add_password(command)
    command = add_action(
        users, "users", "tags", set_tags, "say what a user may do over HTTP", "NAME [TAG]..."
    )
    _add_name(command)
    command.add_argument(
        "tags", metavar="TAG", nargs="*", help=f"{', '.join(TAGS)}; none at all is nothing"
    )
    _add_name(
        add_action(
            users, "users", "delete", delete_user, "delete a user; its connections end", "NAME"
        )
    )

    permissions = add_group(commands, "permissions", "list, set and clear what users may do")
    command = add_action(
        permissions,
        "permissions",
        "list",
        list_permissions,
        "list permissions, and rules about topics",
        "[USER]",
    )
    command.add_argument("name", metavar="USER", nargs="?", help="of this user only")
    add_json(command)
    command = add_action(
        permissions,
        "permissions",
        "set",
        set_permission,
        "say what a user may configure, write to and read from",
        "USER CONFIGURE WRITE READ [--vhost NAME]",
    )
    _add_name(command, "USER")
    for name in ("configure", "write", "read"):
        command.add_argument(
            name,
            metavar=name.upper(),
            help='regular expression, found somewhere in a name; "" is none, ".*" is every',
        )
    add_vhost(command)
    command = add_action(
        permissions,
        "permissions",
        "clear",
        clear_permission,
        "let a user enter a virtual host no more",
        "USER [--vhost NAME]",
    )
    _add_name(command, "USER")
    add_vhost(command)
    command = add_action(
        permissions,
        "permissions",
        "topic",
        set_rules,
        "give a user ordered rules about topics; none at all allow all",
        "USER [RULE]... [--vhost NAME]",
    )
    _add_name(command, "USER")
    command.add_argument(
        "rules",
        metavar="RULE",
        nargs="*",
        help='such as "allow publish sensors/{username}/#"; the first that matches decides',
    )
    add_vhost(command)


def _add_name(command: Parser, metavar: str = "NAME") -> None:
    command.add_argument("name", metavar=metavar, help="name of the user")


def _add_password(command: Parser) -> None:
    command.add_argument(
        "--new-password-file",
        metavar="FILE",
        help="file that holds the password of that user [asked for, or read from standard input]",
    )


def _password(arguments: argparse.Namespace) -> str:
    """Of the user that is made or changed; that of who asks is another one."""
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
            raise CommandError("these are two different passwords", 2)
    if not password:
        raise CommandError("the password is empty", 2)
    return password


def _tags(tags: list[str]) -> list[str]:
    for tag in tags:
        if tag not in TAGS:
            raise CommandError(f"there is no tag {tag}; the nearest is {nearest(tag, TAGS)}", 2)
    return tags


def list_users(arguments: argparse.Namespace) -> int:
    rows = [{"from": "broker", **row} for row in ask(arguments, "GET", "users")]
    show(rows, ("name", "tags", "from"), arguments, "no users")
    return 0


def add_user(arguments: argparse.Namespace) -> int:
    tags = _tags([tag for tag in arguments.tags.split(",") if tag])
    if any(row["name"] == arguments.name for row in ask(arguments, "GET", "users")):
        raise CommandError(f"there is a user {arguments.name}; change its password or its tags")
    ask(
        arguments,
        "PUT",
        "users",
        arguments.name,
        body={"password": _password(arguments), "tags": tags},
    )
    print(
        f"user {arguments.name} may log in; `trellis permissions set {arguments.name} ...` says where to"
    )
    return 0


def change_password(arguments: argparse.Namespace) -> int:
    row = ask(arguments, "GET", "users", arguments.name)
    ask(
        arguments,
        "PUT",
        "users",
        arguments.name,
        body={"password": _password(arguments), "tags": row["tags"]},
    )
    return 0


def set_tags(arguments: argparse.Namespace) -> int:
    tags = _tags(arguments.tags)
    ask(arguments, "GET", "users", arguments.name)
    ask(arguments, "PUT", "users", arguments.name, body={"tags": tags})
    return 0


def delete_user(arguments: argparse.Namespace) -> int:
    ask(arguments, "DELETE", "users", arguments.name)
    return 0


def list_permissions(arguments: argparse.Namespace) -> int:
    rows = ask(arguments, "GET", "permissions")
    rules = {
        (row["user"], row["vhost"]): row["rules"] for row in ask(arguments, "GET", "topic-rules")
    }
    mine = [
        row | {"rules": "; ".join(rules.get((row["user"], row["vhost"]), []))}
        for row in rows
        if arguments.name in (None, row["user"])
    ]
    show(
        mine, ("user", "vhost", "configure", "write", "read", "rules"), arguments, "no permissions"
    )
    return 0


def set_permission(arguments: argparse.Namespace) -> int:
    body = {name: getattr(arguments, name) for name in ("configure", "write", "read")}
    ask(arguments, "PUT", "permissions", arguments.vhost, arguments.name, body=body)
    return 0


def clear_permission(arguments: argparse.Namespace) -> int:
    ask(arguments, "DELETE", "permissions", arguments.vhost, arguments.name)
    return 0


def set_rules(arguments: argparse.Namespace) -> int:
    ask(
        arguments,
        "PUT",
        "topic-rules",
        arguments.vhost,
        arguments.name,
        body={"rules": arguments.rules},
    )
    return 0
