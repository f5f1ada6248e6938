"""`trellis queues`, `exchanges` and `bindings`: declare and delete objects of a running broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from broker.errors import BrokerError
from trellis.cli.actions import add_action, add_group, add_result, add_vhost, print_result
from trellis.cli.api_client import ApiClient, ApiRefused
from trellis.cli.confirming import add_yes, confirm
from trellis.cli.consequences import SHOWN, deletion_lines, unbinding_lines
from trellis.cli.parsing import CommandError, Commands, Parser
from trellis.cli.readable import count_text
from trellis.monitoring.route_question import header_of

Row = dict[str, Any]
#: Types of queues that clients declare.
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
#: The beginning of a DESTINATION that is an exchange.
EXCHANGE: Final = "exchange:"
#: Name of the default exchange in the HTTP API.
_DEFAULT: Final = "amq.default"
_NOT_FOUND: Final = 404


def add(commands: Commands) -> None:
    """Add the parsers of the commands queues, exchanges and bindings."""
    _add_queues(commands)
    _add_exchanges(commands)
    _add_bindings(commands)


def _add_queues(commands: Commands) -> None:
    queues = add_group(
        commands,
        "queues",
        "declare and delete queues of a running broker (to list them: `trellis list queues`)",
    )
    command = add_action(
        queues,
        "queues",
        "declare",
        declare_queue,
        "declare a queue",
        "NAME [--type TYPE] [--transient] [--auto-delete] [--argument NAME=VALUE]... "
        "[--vhost NAME]",
    )
    command.add_argument("name", metavar="NAME", help="name of the queue")
    command.add_argument(
        "--type",
        choices=QUEUE_TYPES,
        metavar="TYPE",
        help=f"type of the queue: {', '.join(QUEUE_TYPES)} [default type of the virtual host]",
    )
    _add_options(command, "queue", "its last consumer has ended")
    add_result(command)
    add_vhost(command)
    command = add_action(
        queues,
        "queues",
        "delete",
        delete_queue,
        "delete a queue with its messages and bindings",
        "NAME [--if-unused] [--if-empty] [--yes] [--vhost NAME]",
    )
    command.add_argument("name", metavar="NAME", help="name of the queue")
    command.add_argument(
        "--if-unused", action="store_true", help="refuse the deletion if the queue has a consumer"
    )
    command.add_argument(
        "--if-empty", action="store_true", help="refuse the deletion if the queue has a message"
    )
    _add_end(command)


def _add_exchanges(commands: Commands) -> None:
    exchanges = add_group(
        commands,
        "exchanges",
        "declare and delete exchanges of a running broker (to list them: `trellis list exchanges`)",
    )
    command = add_action(
        exchanges,
        "exchanges",
        "declare",
        declare_exchange,
        "declare an exchange",
        "NAME [--type TYPE] [--transient] [--auto-delete] [--internal] [--argument NAME=VALUE]... "
        "[--vhost NAME]",
    )
    command.add_argument("name", metavar="NAME", help="name of the exchange")
    command.add_argument(
        "--type",
        default="topic",
        metavar="direct|fanout|headers|topic|TYPE",
        help="type of the exchange [topic]",
    )
    _add_options(command, "exchange", "its last binding is removed")
    command.add_argument(
        "--internal",
        action="store_true",
        help="accept messages from other exchanges only, not from publishers",
    )
    add_result(command)
    add_vhost(command)
    command = add_action(
        exchanges,
        "exchanges",
        "delete",
        delete_exchange,
        "delete an exchange with its bindings",
        "NAME [--if-unused] [--yes] [--vhost NAME]",
    )
    command.add_argument("name", metavar="NAME", help="name of the exchange")
    command.add_argument(
        "--if-unused",
        action="store_true",
        help="refuse the deletion if a binding of the exchange exists",
    )
    _add_end(command)


def _add_bindings(commands: Commands) -> None:
    bindings = add_group(
        commands,
        "bindings",
        "declare and delete bindings of a running broker (to list them: `trellis list bindings`)",
    )
    usage = "SOURCE DESTINATION [KEY] [--argument NAME=VALUE]..."
    for name, run, text in (
        ("declare", declare_binding, "bind a queue or an exchange to an exchange"),
        ("delete", delete_binding, "delete a binding"),
    ):
        deletes = name == "delete"
        words = f"{usage} [--yes] [--vhost NAME]" if deletes else f"{usage} [--vhost NAME]"
        command = add_action(bindings, "bindings", name, run, text, words)
        command.add_argument("source", metavar="SOURCE", help="source exchange of the binding")
        command.add_argument(
            "destination", metavar="DESTINATION", help="queue, or exchange:NAME for an exchange"
        )
        command.add_argument(
            "key", metavar="KEY", nargs="?", default="", help="binding key [the empty key]"
        )
        _add_arguments(command, "binding")
        if deletes:
            _add_end(command)
        else:
            add_result(command)
            add_vhost(command)


def _add_options(command: Parser, kind: str, end: str) -> None:
    command.add_argument(
        "--transient",
        action="store_true",
        help=f"a restart of the broker deletes the {kind} [the {kind} is durable]",
    )
    command.add_argument(
        "--auto-delete", action="store_true", help=f"the broker deletes the {kind} when {end}"
    )
    _add_arguments(command, kind)


def _add_arguments(command: Parser, kind: str) -> None:
    command.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"argument of the {kind}, may be repeated; a VALUE that is JSON, such as 3 or true, "
        "has JSON's type",
    )


def _add_end(command: Parser) -> None:
    add_yes(command)
    add_result(command)
    add_vhost(command)


def _arguments_of(arguments: argparse.Namespace) -> Row:
    """Return the values of --argument by name. Raises CommandError."""
    return arguments_of(arguments.argument, "--argument") if arguments.argument else {}


def arguments_of(given: list[str], flag: str) -> Row:
    """Return the arguments of a binding, a queue or an exchange by name.

    `given` has texts of the form NAME=VALUE, which follow `flag` on the command line. Raises
    CommandError.
    """
    arguments: Row = {}
    for text in given:
        try:
            name, value = header_of(text)
        except BrokerError:
            raise CommandError(f"{flag}: '{text}' must have the form NAME=VALUE", 2) from None
        arguments[name] = value
    return arguments


# -- queues


def declare_queue(arguments: argparse.Namespace) -> int:
    """Declare the queue that the arguments describe."""
    given = _arguments_of(arguments)
    if arguments.type is not None:
        kind = given.setdefault("x-queue-type", arguments.type)
        if kind != arguments.type:
            raise CommandError(
                f"--argument x-queue-type={kind} contradicts --type {arguments.type}: give one of "
                "them",
                2,
            )
    return _declare(arguments, "queue", {"arguments": given})


def _declare(arguments: argparse.Namespace, kind: str, options: Row) -> int:
    client, path = ApiClient(arguments), (f"{kind}s", arguments.vhost, arguments.name)
    existed = _exists(client, *path)
    body = {"durable": not arguments.transient, "auto_delete": arguments.auto_delete, **options}
    client.json("PUT", *path, body=body)
    text = f"{kind} '{arguments.name}' " + (
        "exists already with these properties" if existed else "is declared"
    )
    fields = {"vhost": arguments.vhost, kind: arguments.name, "changed": not existed}
    print_result(arguments, text, **fields)
    return 0


def _exists(client: ApiClient, *path: str) -> bool:
    """True if the HTTP API has an object at `path`. Raises CommandError."""
    try:
        client.json("GET", *path)
    except ApiRefused as refusal:
        if refusal.status != _NOT_FOUND:
            raise
        return False
    return True


def delete_queue(arguments: argparse.Namespace) -> int:
    """Delete a queue with its messages and bindings, after a confirmation."""
    client, path = ApiClient(arguments), ("queues", arguments.vhost, arguments.name)
    row = client.json("GET", *path)
    confirm(arguments, _queue_lines(client, row))
    query = _conditions(arguments, "if_unused", "if_empty")
    client.request("DELETE", *path, query=query)
    text = f"deleted queue '{arguments.name}' with {count_text(row['messages'], 'message')}"
    fields = {"vhost": arguments.vhost, "queue": arguments.name, "messages": row["messages"]}
    print_result(arguments, text, **fields, changed=True)
    return 0


def _conditions(arguments: argparse.Namespace, *names: str) -> Row:
    return {name.replace("_", "-"): "true" for name in names if getattr(arguments, name)}


def _queue_lines(client: ApiClient, row: Row) -> Iterator[str]:
    """Yield the lines that tell the user the consequences of deleting a queue."""
    held = row["messages_unacknowledged"]
    of_consumers = f", of which consumers hold {held:,}" if held else ""
    messages = count_text(row["messages"], "message")
    yield f"queue '{row['name']}' will be deleted with {messages}{of_consumers}"
    if row["consumers"]:
        yield f"{count_text(row['consumers'], 'consumer')} will be cancelled"
    path = ("queues", row["vhost"], row["name"], "bindings")
    first, count = _first_bindings(client, *path)
    # The default exchange has a binding to each queue, which is no binding of a client.
    bindings = [one for one in first if one["source"]]
    yield from _removed_lines(bindings, count - len(first) + len(bindings), "from")
    yield from deletion_lines(client, row["vhost"], "queue", row["name"])


def _first_bindings(client: ApiClient, *path: str) -> tuple[list[Row], int]:
    """Return the first SHOWN + 1 bindings at `/api/PATH`, and the number of all bindings there."""
    query = {"page": 1, "page_size": SHOWN + 1}
    answer = client.request("GET", *path, query=query)
    page: Row = client.decode(answer, Row, "page of bindings", *path)
    return page["items"], page["total_count"]


def _removed_lines(bindings: list[Row], count: int, ends: str) -> Iterator[str]:
    """Yield a line about the bindings that are removed with a queue or an exchange, if any.

    `bindings` are the first of `count` bindings. `ends` is "from" or "to": the line names the
    exchanges that the bindings come from, or the queues and exchanges that they lead to.
    """
    if not bindings:
        return
    texts = [
        f"'{one['routing_key']}' {ends} "
        + (f"'{one['source']}'" if ends == "from" else f"'{one['destination']}'")
        for one in bindings[:SHOWN]
    ]
    more = count - len(texts)
    shown = ", ".join(texts) + (f" and {more:,} more" if more else "")
    yield f"{count_text(count, 'binding')} will be removed: {shown}"


# -- exchanges


def declare_exchange(arguments: argparse.Namespace) -> int:
    """Declare the exchange that the arguments describe."""
    options = {
        "type": arguments.type,
        "internal": arguments.internal,
        "arguments": _arguments_of(arguments),
    }
    return _declare(arguments, "exchange", options)


def delete_exchange(arguments: argparse.Namespace) -> int:
    """Delete an exchange with its bindings, after a confirmation."""
    client, path = ApiClient(arguments), ("exchanges", arguments.vhost, arguments.name)
    client.json("GET", *path)
    confirm(arguments, _exchange_lines(client, *path))
    client.request("DELETE", *path, query=_conditions(arguments, "if_unused"))
    text = f"deleted exchange '{arguments.name}'"
    fields = {"vhost": arguments.vhost, "exchange": arguments.name}
    print_result(arguments, text, **fields, changed=True)
    return 0


def _exchange_lines(client: ApiClient, *path: str) -> Iterator[str]:
    """Yield the lines that tell the user the consequences of deleting an exchange."""
    _, vhost, name = path
    yield (
        f"exchange '{name}' will be deleted: a client that publishes to it will get the error 404, "
        "which closes the channel"
    )
    for side, ends in (("source", "to"), ("destination", "from")):
        bindings, count = _first_bindings(client, *path, "bindings", side)
        yield from _removed_lines(bindings, count, ends)
    yield from deletion_lines(client, vhost, "exchange", name)


# -- bindings


def _ends(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the path of the bindings between SOURCE and DESTINATION in the HTTP API."""
    kind = "e" if arguments.destination.startswith(EXCHANGE) else "q"
    target = arguments.destination.removeprefix(EXCHANGE)
    return ("bindings", arguments.vhost, "e", arguments.source or _DEFAULT, kind, target)


def declare_binding(arguments: argparse.Namespace) -> int:
    """Bind a queue or an exchange to an exchange."""
    client, given = ApiClient(arguments), _arguments_of(arguments)
    existed = bool(_matching(client, arguments, given))
    client.json("POST", *_ends(arguments), body={"routing_key": arguments.key, "arguments": given})
    text = f"{_binding_text(arguments)} " + ("exists already" if existed else "is declared")
    print_result(arguments, text, **_binding_fields(arguments), changed=not existed)
    return 0


def _binding_text(arguments: argparse.Namespace) -> str:
    return f"binding '{arguments.key}' of '{arguments.source}' to '{arguments.destination}'"


def _binding_fields(arguments: argparse.Namespace) -> Row:
    names = ("vhost", "source", "destination", "key")
    return {name: getattr(arguments, name) for name in names}


def _matching(client: ApiClient, arguments: argparse.Namespace, given: Row) -> list[Row]:
    """Return the bindings that the arguments name, as the HTTP API describes them.

    Bindings with other arguments than `given` do not match. Raises CommandError.
    """
    return [
        row
        for row in client.json("GET", *_ends(arguments))
        if row["routing_key"] == arguments.key and row["arguments"] == given
    ]


def delete_binding(arguments: argparse.Namespace) -> int:
    """Delete a binding, after a confirmation. Raises CommandError if the binding does not exist."""
    client, given = ApiClient(arguments), _arguments_of(arguments)
    rows = _matching(client, arguments, given)
    if not rows:
        raise CommandError(
            f"vhost '{arguments.vhost}' has no {_binding_text(arguments)}"
            + (" with these arguments" if given else " without arguments")
            + "; `trellis list bindings` shows all bindings"
        )
    confirm(arguments, _binding_lines(client, rows[0]))
    client.request("DELETE", *_ends(arguments), rows[0]["properties_key"])
    text = f"deleted {_binding_text(arguments)}"
    print_result(arguments, text, **_binding_fields(arguments), changed=True)
    return 0


def _binding_lines(client: ApiClient, row: Row) -> Iterator[str]:
    """Yield the lines that tell the user the consequences of deleting a binding."""
    yield (
        f"binding '{row['routing_key']}' of exchange '{row['source']}' to "
        f"{row['destination_type']} '{row['destination']}' will be deleted"
    )
    yield from unbinding_lines(client, row)
