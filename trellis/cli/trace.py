"""`trellis trace`: prints what happens to messages, from their publication to their settlement.

The broker follows the messages that match the filter of the command, and the command reads the
steps of these messages. If the command is killed, the broker ends the trace after half a minute.
With --journal, the command examines past messages, from the rows of a journal (past_trace.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from trellis.cli.actions import add_vhost
from trellis.cli.api_client import ApiClient, ApiRefused, add_login
from trellis.cli.parsing import CommandError, Commands, add_command, number, time_of
from trellis.cli.readable import count_text
from trellis.settings.errors import printable

#: Seconds between two requests that find no event.
PAUSE: Final = 0.2
#: Filters that send only messages of some routes to the slow path of the broker.
_OF_ROUTES: Final = ("exchange", "key", "topic", "publisher", "queue")
Row = dict[str, Any]


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis trace`."""
    command = add_command(
        commands,
        "trace",
        trace,
        "print what happens to messages: published, routed, delivered, acknowledged, dropped and "
        "why",
        "[--topic FILTER | --key KEY] [--exchange NAME] [--queue NAME] [--publisher USER] "
        "[--client NAME] [--message-id ID] [--journal NAME [--since TIME] [--until TIME]] "
        "[--rate N] [--count N] [--json] [--vhost NAME] "
        "[--url URL] [--user NAME --password WORD]",
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--topic", metavar="FILTER", help="MQTT topic filter of the messages, such as plant/+/temp"
    )
    which.add_argument(
        "--key",
        metavar="KEY",
        help="binding key that the routing keys of the messages match, such as orders.#",
    )
    command.add_argument(
        "--exchange", metavar="NAME", help="exchange of the messages; '' is the default exchange"
    )
    command.add_argument("--queue", metavar="NAME", help="queue to which the messages are routed")
    command.add_argument("--publisher", metavar="USER", help="user that publishes the messages")
    command.add_argument(
        "--client",
        metavar="NAME",
        help="publishing client: MQTT client identifier, name of an AMQP connection, or address "
        "with port",
    )
    command.add_argument(
        "--message-id", metavar="ID", help="property message_id of the messages (AMQP)"
    )
    command.add_argument(
        "--journal",
        metavar="NAME",
        help="show past messages, from the rows of this journal, instead of new messages",
    )
    for name, text in (("since", "from this time on"), ("until", "up to this time")):
        command.add_argument(
            f"--{name}",
            type=time_of,
            metavar="TIME",
            help=f"past messages {text}: an age such as 15m, 2h or 7d, or an ISO 8601 "
            "time (UTC if it has no time zone)",
        )
    command.add_argument(
        "--rate",
        type=number(int, 1),
        default=10,
        metavar="N",
        help="largest number of messages per second that are followed; at most 1000 [10]",
    )
    command.add_argument(
        "--count", type=number(int, 1), metavar="N", help="end after this number of steps"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object per step")
    add_vhost(command)
    add_login(command)


class RunningTrace:
    """A context manager that starts a trace in the broker, and ends the trace at exit."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._client = ApiClient(arguments)
        self._path = ("trellis", "traces", arguments.vhost)
        self._body = _filter(arguments)
        self._number = ""
        #: The counts in the broker's last answer about the trace.
        self.counts: Row = {"skipped": 0, "lost": 0}

    def missing(self) -> Iterator[str]:
        """Yield a line for each object of the filter that does not exist, with the nearest name.

        A trace may name a missing object: the object may be declared while the trace runs.
        """
        vhost = self._path[-1]
        for kind, path in (("queue", "queues"), ("exchange", "exchanges")):
            name = self._body.get(kind, "")
            if not name:
                continue
            try:
                self._client.request("GET", path, vhost, name)
            except ApiRefused as refusal:
                if refusal.status == 404:
                    yield f"the trace shows nothing yet: {refusal}{refusal.advice()}"

    def __enter__(self) -> RunningTrace:
        self._number = str(self._client.json("POST", *self._path, body=self._body)["trace"])
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._client.request("DELETE", *self._path, self._number)
        except CommandError:
            pass  # The broker ends a trace that nothing reads, so this trace ends in any case.

    def steps(self) -> Iterator[Row]:
        """Yield the steps of the traced messages as they come. Raises CommandError."""
        after = 0
        while True:
            path = (*self._path, self._number)
            answer = self._client.request("GET", *path, query={"after": after})
            row = self.counts = self._client.decode(answer, Row, "trace", *path)
            for event in row["events"]:
                after = event["number"]
                yield event
            if not row["events"]:
                time.sleep(PAUSE)


def _filter(arguments: argparse.Namespace) -> Row:
    given = {
        "exchange": arguments.exchange,
        "key": arguments.key,
        "topic": arguments.topic,
        "queue": arguments.queue,
        "user": arguments.publisher,
        "client": arguments.client,
        "message_id": arguments.message_id,
    }
    row = {name: value for name, value in given.items() if value is not None}
    return {**row, "rate": arguments.rate}


def trace(arguments: argparse.Namespace) -> int:
    """Print the steps of traced messages: --count steps, or all until the user interrupts."""
    if arguments.journal is not None:
        return _trace_past(arguments)
    if arguments.since is not None or arguments.until is not None:
        raise CommandError("--since and --until select past messages: give --journal NAME", 2)
    running = RunningTrace(arguments)
    missing = list(running.missing())
    with running:
        for line in missing:
            print(line, file=sys.stderr)
        if not any(getattr(arguments, name) is not None for name in _OF_ROUTES):
            print(
                f"while this trace runs, all messages of vhost '{arguments.vhost}' take the slower "
                "path of the broker: --topic, --key, --exchange, --queue or --publisher limits "
                "this to some messages",
                file=sys.stderr,
            )
        print("tracing; end with Ctrl-C", file=sys.stderr, flush=True)
        try:
            for shown, step in enumerate(running.steps(), 1):
                _print(step, arguments.json)
                if shown == arguments.count:
                    break
        finally:
            _report(running.counts)
    return 0


def _trace_past(arguments: argparse.Namespace) -> int:
    """Print the steps of past messages. The exit code is 1 if no message matches."""
    from trellis.cli.past_trace import PastTrace  # loads the core, which is needed here only

    past = PastTrace(arguments)
    shown = 0
    for shown, step in enumerate(past.steps(), 1):
        _print(step, arguments.json, "%Y-%m-%d %H:%M:%S")
        if shown == arguments.count:
            break
    if not shown:
        print(f"no row of journal '{arguments.journal}' matches the options", file=sys.stderr)
    if past.without_destinations:
        print(
            f"the destinations of {count_text(past.without_destinations, 'message')} are not known:"
            " the stream $topology does not reach back to their time",
            file=sys.stderr,
        )
    return 0 if shown else 1


def _print(step: Row, as_json: bool, times: str = "%H:%M:%S") -> None:
    if as_json:
        print(msgspec.json.encode(step).decode(), flush=True)
        return
    at = time.strftime(times, time.localtime(step["time"]))
    thousandths = int(step["time"] * 1_000) % 1_000
    place = f" '{printable(step['place'])}'" if step["place"] else ""
    detail = f": {printable(step['detail'])}" if step["detail"] else ""
    name = step["step"].replace("_", " ")
    print(f"{at}.{thousandths:03} #{step['message']} {name}{place}{detail}", flush=True)


def _report(counts: Row) -> None:
    """Print how many messages and steps the trace left out, if any."""
    if counts["skipped"]:
        print(
            f"the trace left out {count_text(counts['skipped'], 'matching message')}; --rate "
            "raises the number of traced messages per second",
            file=sys.stderr,
        )
    if counts["lost"]:
        print(
            f"{count_text(counts['lost'], 'step')} came too fast and are not shown", file=sys.stderr
        )
