"""`trellis vhosts` and `trellis policies`: virtual hosts and policies of a running broker."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from broker.queues.policies import APPLY_TO
from trellis.cli.actions import (
    add_action,
    add_group,
    add_json,
    add_result,
    add_vhost,
    ask,
    print_result,
    show,
)
from trellis.cli.api_client import ApiClient
from trellis.cli.confirming import add_yes, arriving_text, confirm
from trellis.cli.consequences import policy_change_lines, policy_lines, vhost_lines
from trellis.cli.parsing import CommandError, Commands
from trellis.cli.readable import count_text
from trellis.settings.errors import shown

#: A definition of a policy, as a word for a shell.
_EXAMPLE: Final = """'{"max-length": 1000}'"""


def add(commands: Commands) -> None:
    """Add the parsers of the commands vhosts and policies."""
    vhosts = add_group(commands, "vhosts", "list, add and delete virtual hosts of a running broker")
    add_json(add_action(vhosts, "vhosts", "list", list_vhosts, "list virtual hosts"))
    for name, run, text in (
        ("add", create_vhost, "add a virtual host"),
        (
            "delete",
            delete_vhost,
            "delete a virtual host with its queues and sessions, and close its connections",
        ),
    ):
        usage = "NAME" if name == "add" else "NAME [--yes]"
        command = add_action(vhosts, "vhosts", name, run, text, usage)
        command.add_argument("name", metavar="NAME", help="name of the virtual host")
        if name == "delete":
            add_yes(command)
        add_result(command)

    policies = add_group(commands, "policies", "list, set and clear policies of a running broker")
    add_json(add_action(policies, "policies", "list", list_policies, "list policies"))
    command = add_action(
        policies,
        "policies",
        "set",
        set_policy,
        "add or replace a policy",
        "NAME PATTERN DEFINITION [--apply-to OBJECTS] [--priority N] [--yes] [--vhost NAME]",
        "If queues would lose messages because of a lower limit, the command says how many "
        "messages, and asks for a confirmation.",
    )
    command.add_argument("name", metavar="NAME", help="name of the policy")
    command.add_argument(
        "pattern",
        metavar="PATTERN",
        help="regular expression that is searched in the names of queues and exchanges",
    )
    command.add_argument(
        "definition",
        metavar="DEFINITION",
        help=f"arguments that the policy sets, as JSON: {_EXAMPLE}",
    )
    command.add_argument(
        "--apply-to",
        default="all",
        choices=APPLY_TO,
        metavar="OBJECTS",
        help=f"objects that the policy applies to: {', '.join(APPLY_TO)} [all]",
    )
    command.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="N",
        help="priority of the policy; the matching policy with the highest priority applies [0]",
    )
    add_yes(command)
    add_result(command)
    add_vhost(command)
    command = add_action(
        policies,
        "policies",
        "clear",
        clear_policy,
        "delete a policy",
        "NAME [--yes] [--vhost NAME]",
    )
    command.add_argument("name", metavar="NAME", help="name of the policy")
    add_yes(command)
    add_result(command)
    add_vhost(command)


def list_vhosts(arguments: argparse.Namespace) -> int:
    """Print all virtual hosts."""
    show(ask(arguments, "GET", "vhosts"), ("name", "messages"), arguments, "no virtual hosts")
    return 0


def create_vhost(arguments: argparse.Namespace) -> int:
    """Add the virtual host that the arguments name."""
    known = any(row["name"] == arguments.name for row in ask(arguments, "GET", "vhosts"))
    ask(arguments, "PUT", "vhosts", arguments.name, body={})
    state = "exists already" if known else "is added"
    text = f"vhost '{arguments.name}' {state}"
    print_result(arguments, text, vhost=arguments.name, changed=not known)
    return 0


def delete_vhost(arguments: argparse.Namespace) -> int:
    """Delete a virtual host with its queues and sessions, after a confirmation.

    The broker closes the connections of the virtual host.
    """
    client = ApiClient(arguments)
    row = client.json("GET", "consequences", "vhosts", arguments.name)
    confirm(arguments, _deletion_lines(client, row))
    client.request("DELETE", "vhosts", arguments.name)
    text = (
        f"deleted vhost '{arguments.name}' with {count_text(row['queues'], 'queue')} and "
        f"{count_text(row['messages'], 'message')}"
    )
    counts = {name: row[name] for name in ("queues", "messages", "connections")}
    print_result(arguments, text, vhost=arguments.name, **counts, changed=True)
    return 0


def _deletion_lines(client: ApiClient, row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that tell the user the consequences of deleting a virtual host."""
    yield from vhost_lines(row)
    coming = arriving_text(client, "vhosts", row["vhost"])
    if coming:
        yield f"{coming} in the vhost now, and their publishers will be disconnected"


def list_policies(arguments: argparse.Namespace) -> int:
    """Print the policies of all virtual hosts."""
    columns = ("vhost", "name", "pattern", "apply-to", "priority", "definition")
    show(ask(arguments, "GET", "policies"), columns, arguments, "no policies")
    return 0


def set_policy(arguments: argparse.Namespace) -> int:
    """Add or replace the policy that the arguments describe.

    If queues lose messages because of the policy, ask for a confirmation first.
    """
    client = ApiClient(arguments)
    path = ("policies", arguments.vhost, arguments.name)
    body = {
        "pattern": arguments.pattern,
        "definition": _definition_of(arguments.name, arguments.definition),
        "apply-to": arguments.apply_to,
        "priority": arguments.priority,
    }
    if not arguments.yes:
        answer = client.json("POST", "consequences", *path, body=body)
        if answer["dropped"] or answer["dead_lettered"] or answer["uncounted"]:
            confirm(arguments, policy_change_lines(answer, "set"))
    client.json("PUT", *path, body=body)
    text = f"set policy '{arguments.name}' in vhost '{arguments.vhost}'"
    print_result(
        arguments, text, policy=arguments.name, vhost=arguments.vhost, **body, changed=True
    )
    return 0


def _definition_of(policy: str, text: str) -> dict[str, Any]:
    """Decode the argument DEFINITION of a policy: a JSON object. Raises CommandError."""
    try:
        definition = json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        place = f"at character {error.pos + 1}, {shown(rest)}" if rest else "at its end"
        fault = f"is not JSON {place}"
    except (ValueError, RecursionError):
        fault = "has a number with too many digits, or too many levels"
    else:
        if isinstance(definition, dict):
            return definition
        fault = "is JSON, but not an object"
    raise CommandError(
        f"policy '{policy}': the definition {shown(text)} {fault}: write an object in braces, with "
        "names and texts in double quotes, and put single quotes around it for the shell, as in "
        f"{_EXAMPLE}",
        2,
    )


def clear_policy(arguments: argparse.Namespace) -> int:
    """Delete the policy that the arguments name, after a confirmation."""
    client = ApiClient(arguments)
    confirm(arguments, policy_lines(client, arguments.vhost, arguments.name))
    client.request("DELETE", "policies", arguments.vhost, arguments.name)
    text = f"deleted policy '{arguments.name}' in vhost '{arguments.vhost}'"
    print_result(arguments, text, policy=arguments.name, vhost=arguments.vhost, changed=True)
    return 0
