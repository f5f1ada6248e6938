"""Arguments of `trellis ask` and `trellis pipeline`, which examine messages of the past.

Both commands have the jobs whatif, audit and advise, with the same arguments. The messages come
from a journal, or from the counts that `trellis pipeline traffic` has written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from trellis.cli.api_client import ApiClient, add_login, credentials
from trellis.cli.parsing import CommandError, Parser, load_settings, number, time_of

#: The journal that a command reads by default, if it asks the broker of the settings.
OWN_JOURNAL: Final = "the journal of the broker of --url"


class HistoryJob(NamedTuple):
    """A job of `trellis ask` and `trellis pipeline`: whatif, audit or advise.

    `text` is its help, `usage` its usage line, and `add` adds its arguments to a parser.
    """

    text: str
    usage: str
    add: Callable[[Parser], None]


def add_json(tool: Parser) -> None:
    """Add the flag --json, which writes the answer to a file."""
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write the whole answer as JSON to FILE; - prints the JSON instead of the table",
    )


def add_check(tool: Parser, condition: str) -> None:
    """Add the flag --check. With the flag, the exit code is 1 if a condition holds.

    `condition` is the text of this condition for --help.
    """
    tool.add_argument(
        "--check", action="store_true", help=f"end with exit code 1 if {condition}, for CI"
    )


def _add_whatif(tool: Parser) -> None:
    tool.add_argument(
        "--definitions", metavar="FILE", required=True, help="file with the proposed definitions"
    )
    tool.add_argument(
        "--current",
        metavar="FILE|URL",
        help="current definitions, with which the proposed ones are compared [$topology, else the "
        "routes in the journal]",
    )
    add_json(tool)


def _add_audit(tool: Parser) -> None:
    add_definitions(tool)
    add_json(tool)
    add_check(tool, "a binding is dead or redundant, or a topic is unroutable")


def _add_advise(tool: Parser) -> None:
    add_definitions(tool)
    tool.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("matching-profile.json"),
        help="matching profile to write [matching-profile.json]",
    )
    add_json(tool)


def add_place(tool: argparse._ActionsContainer, required: bool, default: str = "") -> None:
    """Add --journal and --stream, which name a journal, and --pattern, which selects topics.

    If `required` is True, a command line without --journal is an error. If `required` is False, a
    command line without --journal reads a default journal, which `default` describes for --help.
    """
    tool.add_argument(
        "--journal",
        metavar="PLACE",
        required=required,
        help="journal to read: the directory of a stream, or the URL of a broker "
        "(http://HOST:15672)" + (f" [{default}]" if default else ""),
    )
    tool.add_argument(
        "--stream",
        metavar="QUEUE",
        help="name of the stream, as QUEUE or VHOST/QUEUE; only if the journal is read from a "
        "broker",
    )
    tool.add_argument(
        "--pattern", metavar="PATTERN", help="read only topics that match this AMQP binding key"
    )


def add_journal(tool: argparse._ActionsContainer, required: bool, default: str = "") -> None:
    """Add the arguments of `add_place`, and --starting, the first offset to read."""
    add_place(tool, required, default)
    tool.add_argument(
        "--starting",
        metavar="OFFSET",
        default="earliest",
        help="first offset to read: earliest, latest or a number [earliest]",
    )


def add_times(tool: argparse._ActionsContainer) -> None:
    """Add --since and --until, which select messages by the time of their arrival."""
    for flag, text in (
        ("--since", "read only messages that the broker received from this time on"),
        ("--until", "read only messages that the broker received before this time"),
    ):
        tool.add_argument(
            flag,
            type=time_of,
            metavar="TIME",
            help=f"{text}; TIME is an age such as 15m, 2h or 7d, or an ISO 8601 time",
        )


def add_mode(tool: Parser, once: str, follow: str) -> None:
    """Add --once, --follow and --every; `once` and `follow` are the help of these two flags."""
    mode = tool.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help=once)
    mode.add_argument("--follow", action="store_true", help=follow)
    tool.add_argument(
        "--every",
        metavar="S",
        type=number(int, 1),
        default=5,
        help="with --follow: seconds between two reads [5]",
    )


def history_usage(usage: str) -> str:
    """Return the usage line of a job, with the arguments that select the messages."""
    return f"[--journal PLACE] {usage.removeprefix('HISTORY ')} [--since TIME] [--until TIME]"


def add_question(tool: Parser) -> None:
    """Add the arguments that select the messages and the topology of a job, and the login.

    The topology is the bindings and MQTT subscriptions.
    """
    group = tool.add_argument_group(
        "history", "Published messages: a journal, or the counts of `trellis pipeline traffic`."
    )
    add_journal(group, required=False, default=OWN_JOURNAL)
    add_times(group)
    group.add_argument(
        "--ending",
        metavar="OFFSET",
        default="latest",
        help="end offset, not included: latest or a number [latest]",
    )
    group.add_argument(
        "--traffic",
        metavar="DIR",
        help="read the counts that `trellis pipeline traffic --target DIR` wrote, instead of a "
        "journal",
    )
    topology = add_topology(tool)
    topology.add_argument(
        "--as-of",
        metavar="TIME",
        help="use the topology of this time (ISO 8601; UTC if it has no zone) [the latest]",
    )
    add_mode(tool, "answer once (the default)", "answer again after new messages, until Ctrl-C")
    add_login(tool)


def add_topology(tool: Parser) -> argparse._ArgumentGroup:
    """Add --topology, which names the stream `$topology`; return the group of arguments.

    This stream records each change of bindings and subscriptions.
    """
    group = tool.add_argument_group(
        "topology",
        "Bindings and MQTT subscriptions from the broker's stream $topology. The stream is needed "
        "for the subscriptions, which a definitions file lacks, and for all bindings if no file is "
        "given.",
    )
    group.add_argument(
        "--topology",
        metavar="PLACE",
        help="stream $topology to read: its directory, or the URL of a broker "
        "(http://HOST:15672); `none` reads no topology [the $topology beside the journal]",
    )
    return group


def add_definitions(tool: Parser) -> None:
    """Add the flag --definitions: the file or broker whose definitions the job examines."""
    tool.add_argument(
        "--definitions",
        metavar="FILE|URL",
        help="definitions to examine: a file of `trellis definitions export`, or the URL of a "
        "broker (http://HOST:15672) [$topology]",
    )


JOBS: Final = {
    "whatif": HistoryJob(
        "replay the history against proposed definitions and report changed deliveries; exit code "
        "1 if a message would be lost",
        "HISTORY --definitions FILE [--current FILE|--as-of TIME] [--once|--follow]",
        _add_whatif,
    ),
    "audit": HistoryJob(
        "report dead, duplicate, subsumed and overlapping bindings, and topics without a receiver",
        "HISTORY --definitions FILE|URL|--as-of TIME [--once|--follow]",
        _add_audit,
    ),
    "advise": HistoryJob(
        "measure the matching algorithms on the history, and write a profile for the setting "
        "matcher.profile",
        "HISTORY --definitions FILE|URL|--as-of TIME [--output FILE] [--once|--follow]",
        _add_advise,
    ),
}


def add_jobs(add_job: Callable[[str, str, str], Parser]) -> None:
    """Add the jobs whatif, audit and advise with their arguments.

    `add_job` takes the name, the help and the usage of a job, and returns its parser.
    """
    for name, job in JOBS.items():
        job.add(add_job(name, job.text, job.usage))


def find_journal(arguments: argparse.Namespace) -> None:
    """Set the journal, and the login for it, in the arguments.

    Without --journal and --traffic, the journal is a stream of a running broker, whose URL is the
    value of --url or comes from the settings. Raises CommandError.
    """
    arguments.credentials = {}
    if arguments.journal is None and getattr(arguments, "traffic", None) is None:
        try:
            client = ApiClient(arguments)
            if arguments.stream is None:
                arguments.stream = _journal_of(client)
        except CommandError as error:
            if error.code == 2:
                raise
            raise CommandError(f"{error}; or name a journal with --journal") from None
        arguments.journal = client.base
        login = (client.user, client.password)
    elif arguments.login_user or arguments.login_password or arguments.login_password_file:
        login = credentials(arguments, load_settings(arguments).settings)
    else:
        return
    arguments.credentials = dict(zip(("user", "password"), login, strict=True))


def _journal_of(client: ApiClient) -> str:
    """Return the only journal that the user may read, as a value of --stream.

    Raises CommandError if the user may read no journal, or several.
    """
    rows = client.json("GET", "streams")
    journals = [_spelled(row["vhost"], row["name"]) for row in rows if row["journal"]]
    if len(journals) == 1:
        return journals[0]
    if journals:
        raise CommandError(
            f"the broker {client.base} has several journals: name one with --stream: "
            f"{', '.join(journals)}",
            2,
        )
    raise CommandError(
        f"user {client.user} may read no journal of the broker {client.base}: declare a stream "
        "with x-journal=true, or permit the user to read a journal, or name a directory with "
        "--journal",
        2,
    )


def imported(arguments: argparse.Namespace, module: str, extra: str) -> tuple[Any, Any]:
    """Import a module of pyspark_trellis by name; return the module pyspark_trellis.errors, and the
    imported module.

    Raises CommandError, which names the extra that the module needs, if a package is missing.
    """
    try:
        return import_module("pyspark_trellis.errors"), import_module(module)
    except ImportError as error:
        raise CommandError(
            f"`trellis {arguments.command}` needs {error.name or 'a package'}, which is not "
            f"installed here: pip install 'trellis-broker[{extra}]'",
            2,
        ) from None


def _spelled(vhost: str, name: str) -> str:
    """Return the value of --stream for a journal: QUEUE in the vhost `/`, else VHOST/QUEUE."""
    parts = [part.translate(_ENCODED) for part in (vhost, name)]
    return parts[1] if vhost == "/" else "/".join(parts)


#: The characters of a name that are encoded in a value of --stream, as in URLs.
_ENCODED: Final = {ord(character): f"%{ord(character):02X}" for character in "%,/"}
