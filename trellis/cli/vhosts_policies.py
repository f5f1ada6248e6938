"""`trellis vhosts` and `trellis policies`, while the broker runs."""

import argparse

import msgspec

from broker.queues.policies import APPLY_TO
from trellis.cli.api_client import add_action, add_group, add_json, add_vhost, ask, show
from trellis.cli.parsing import CommandError, Commands


def add(commands: Commands) -> None:
    vhosts = add_group(commands, "vhosts", "list, add and delete virtual hosts of a running broker")
    add_json(add_action(vhosts, "vhosts", "list", list_vhosts, "list virtual hosts"))
    for name, run, text in (
        ("add", add_vhost_named, "add a virtual host"),
        (
            "delete",
            delete_vhost,
            "delete a virtual host with its queues and sessions; who is there must go",
        ),
    ):
        add_action(vhosts, "vhosts", name, run, text, "NAME").add_argument(
            "name", metavar="NAME", help="name of the virtual host"
        )

    policies = add_group(commands, "policies", "list, set and clear policies of a running broker")
    add_json(add_action(policies, "policies", "list", list_policies, "list policies"))
    command = add_action(
        policies,
        "policies",
        "set",
        set_policy,
        "set a policy",
        "NAME PATTERN DEFINITION [--apply-to OBJECTS] [--priority N] [--vhost NAME]",
    )
    command.add_argument("name", metavar="NAME", help="name of the policy")
    command.add_argument(
        "pattern",
        metavar="PATTERN",
        help="regular expression, found somewhere in the names that it is about",
    )
    command.add_argument(
        "definition", metavar="DEFINITION", help="""what it says, as JSON: '{"max-length": 1000}'"""
    )
    command.add_argument(
        "--apply-to",
        default="all",
        choices=APPLY_TO,
        metavar="OBJECTS",
        help=f"{', '.join(APPLY_TO)} [all]",
    )
    command.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="N",
        help="of several policies the one with the highest holds [0]",
    )
    add_vhost(command)
    command = add_action(
        policies, "policies", "clear", clear_policy, "remove a policy", "NAME [--vhost NAME]"
    )
    command.add_argument("name", metavar="NAME", help="name of the policy")
    add_vhost(command)


def list_vhosts(arguments: argparse.Namespace) -> int:
    show(ask(arguments, "GET", "vhosts"), ("name", "messages"), arguments, "no virtual hosts")
    return 0


def add_vhost_named(arguments: argparse.Namespace) -> int:
    ask(arguments, "PUT", "vhosts", arguments.name, body={})
    return 0


def delete_vhost(arguments: argparse.Namespace) -> int:
    ask(arguments, "DELETE", "vhosts", arguments.name)
    return 0


def list_policies(arguments: argparse.Namespace) -> int:
    show(
        ask(arguments, "GET", "policies"),
        ("vhost", "name", "pattern", "apply-to", "priority", "definition"),
        arguments,
        "no policies",
    )
    return 0


def set_policy(arguments: argparse.Namespace) -> int:
    try:
        definition = msgspec.json.decode(arguments.definition)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise CommandError(
            f"""DEFINITION is not JSON ({error}); write it such as '{{"max-length": 1000}}'""", 2
        ) from None
    body = {
        "pattern": arguments.pattern,
        "definition": definition,
        "apply-to": arguments.apply_to,
        "priority": arguments.priority,
    }
    ask(arguments, "PUT", "policies", arguments.vhost, arguments.name, body=body)
    return 0


def clear_policy(arguments: argparse.Namespace) -> int:
    ask(arguments, "DELETE", "policies", arguments.vhost, arguments.name)
    return 0
