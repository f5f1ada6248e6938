"""`trellis route`: prints where a message would go and why, or checks expectations about routes.

A running broker answers (`GET /api/route`), or with --definitions a broker in memory that has
imported a definitions file.
"""

from __future__ import annotations

import argparse
from typing import Any, Final, Protocol

import msgspec

from broker.errors import BrokerError
from trellis.cli import route_trial
from trellis.cli.actions import add_vhost
from trellis.cli.api_client import ApiClient, add_login, add_publisher, publisher_hint
from trellis.cli.parsing import CommandError, Commands, add_command, number
from trellis.cli.route_expectations import read_expectations, result_of
from trellis.cli.route_text import lines_of
from trellis.monitoring.route_question import RouteQuestion, header_of, header_text
from trellis.settings.errors import printable

#: The value of --limit if neither --limit nor --all is given. An answer with all of 10,000 bindings
#: and their queues takes nearly four times as long (docs/troubleshooting.md).
LIMIT: Final = 1_000


class RouteSource(Protocol):
    """The interface of an object that answers where a message would go, and why."""

    def ask(self, vhost: str, question: RouteQuestion, limit: int = 0) -> dict[str, Any]:
        """Return the route of the message that a question describes. Raises CommandError.

        The result has the fields of the answer to `GET /api/route`. It has at most `limit` matching
        bindings of each exchange, and at most `limit` queues with each verdict. If `limit` is 0, it
        has all bindings and queues.
        """
        ...


class LiveRoutes:
    """A RouteSource that asks a running broker."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def ask(self, vhost: str, question: RouteQuestion, limit: int = 0) -> dict[str, Any]:
        """Ask the broker for the route of a message (`GET /api/route`). Raises CommandError."""
        query: dict[str, object] = {"vhost": vhost, "limit": limit}
        if question.mqtt is None:
            query |= {"exchange": question.exchange, "key": question.key}
        else:
            query["mqtt"] = question.mqtt
        if question.headers:
            lines = [header_text(name, value) for name, value in question.headers.items()]
            query["header"] = "\n".join(lines)
        if question.user is not None:
            query["user"] = question.user
        if question.client_id:
            query["client_id"] = question.client_id
        data = self._client.request("GET", "route", query=query)
        answer: dict[str, Any] = self._client.decode(data, dict[str, Any], "route", "route")
        return answer


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis route`."""
    command = add_command(
        commands,
        "route",
        route,
        "show where a message would go and why: bindings, rights, queues, and bindings that almost "
        "match; publishes nothing",
        "EXCHANGE KEY | --mqtt TOPIC | --expect FILE | --add EXCHANGE KEY DESTINATION | --remove "
        "EXCHANGE KEY DESTINATION  [--header NAME=VALUE]... [--publisher USER] "
        "[--vhost NAME] [--definitions FILE] [--limit N | --all] [--json] "
        "[--url URL] [--user NAME --password WORD]",
        more="The exit code is 0 if the broker answers, even if the message reaches no queue. The "
        "exit code is 1 if no broker answers, or if an expectation of --expect is not met.",
    )
    command.add_argument(
        "exchange",
        metavar="EXCHANGE",
        nargs="?",
        help="exchange of the message; amq.default is the default exchange",
    )
    command.add_argument("key", metavar="KEY", nargs="?", help="routing key")
    command.add_argument(
        "--mqtt", metavar="TOPIC", help="topic of an MQTT message, instead of EXCHANGE and KEY"
    )
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="header of the message, may be repeated; a VALUE that is JSON, such as 3 or true, has "
        "JSON's type",
    )
    add_publisher(command)
    command.add_argument(
        "--client-id",
        metavar="ID",
        default="",
        help="client identifier that stands for {client_id} in the topic rules of the user",
    )
    add_vhost(command)
    command.add_argument(
        "--definitions",
        metavar="FILE",
        help="import this definitions file into a broker in memory, instead of asking a running "
        "broker",
    )
    command.add_argument(
        "--expect",
        metavar="FILE",
        help="check the expectations in this file (TOML or JSON), and print each result in a line; "
        "the exit code is 1 if an expectation is not met",
    )
    route_trial.add_arguments(command)
    command.add_argument(
        "--limit",
        type=number(int, 0),
        metavar="N",
        help="print at most N matching bindings of each exchange, and N queues with each verdict; "
        f"0 for all [{LIMIT:,}]",
    )
    command.add_argument(
        "--all", action="store_true", help="print all matching bindings and queues: --limit 0"
    )
    command.add_argument("--json", action="store_true", help="print the answer as JSON")
    add_login(command, "--login")


def route(arguments: argparse.Namespace) -> int:
    """Print where a message would go, or check the expectations of a file."""
    _check(arguments)
    if arguments.added or arguments.removed:
        return route_trial.print_trial(arguments)
    expectations = None if arguments.expect is None else read_expectations(arguments.expect)
    question = _question(arguments)
    source = _source(arguments)
    if expectations is not None:
        results = [result_of(one, source.ask) for one in expectations]
        if arguments.json:
            print(msgspec.json.format(msgspec.json.encode([one.row() for one in results])).decode())
        else:
            for result in results:
                print(printable(result.line))
        return 0 if all(result.passed for result in results) else 1
    limit = LIMIT if arguments.limit is None else arguments.limit
    answer = source.ask(arguments.vhost, question, 0 if arguments.all else limit)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(answer, enc_hook=str)).decode())
    else:
        for line in lines_of(answer):
            print(printable(line))
    return 0


def _source(arguments: argparse.Namespace) -> RouteSource:
    """Return the running broker, or a broker in memory with the definitions of --definitions."""
    if arguments.definitions is None:
        return LiveRoutes(ApiClient(arguments))
    # This import loads the core, which is not needed if a running broker answers.
    from trellis.cli.routes_in_memory import RoutesInMemory

    return RoutesInMemory.of_file(arguments.definitions)


def _check(arguments: argparse.Namespace) -> None:
    """Raise CommandError unless the arguments name exactly one message, file or trial."""
    named = [
        arguments.exchange is not None,
        arguments.mqtt is not None,
        arguments.expect is not None,
        bool(arguments.added or arguments.removed),
    ]
    if sum(named) != 1 or arguments.exchange is not None and arguments.key is None:
        raise CommandError(
            "give EXCHANGE and KEY, or --mqtt TOPIC, or --expect FILE, or bindings to --add and "
            "--remove (see `trellis route --help`)",
            2,
        )
    trial = arguments.added or arguments.removed
    if trial and (arguments.header or arguments.publisher or arguments.definitions is not None):
        raise CommandError(
            "--add and --remove cannot be combined with --header, --publisher or --definitions: "
            "the running broker tries the bindings with the topics of the last hour",
            2,
        )
    if arguments.definitions is not None and arguments.login_user is not None:
        text = "--definitions asks no broker, so --user has no effect: leave --user out"
        raise CommandError(text + publisher_hint(arguments), 2)
    if arguments.all and arguments.limit:
        raise CommandError(
            "--limit N contradicts --all, which is --limit 0: give only one of them", 2
        )
    if arguments.expect is not None and (arguments.header or arguments.publisher):
        raise CommandError(
            "--expect cannot be combined with --header or --publisher: write the fields `headers` "
            "and `user` of an expectation into the file",
            2,
        )


def _question(arguments: argparse.Namespace) -> RouteQuestion:
    try:
        headers = dict(header_of(text) for text in arguments.header)
    except BrokerError as error:
        raise CommandError(f"--header: {error}", 2) from None
    exchange = arguments.exchange or ""
    return RouteQuestion(
        "" if exchange == "amq.default" else exchange,
        arguments.key or "",
        headers,
        arguments.publisher,
        arguments.mqtt,
        arguments.client_id,
    )
