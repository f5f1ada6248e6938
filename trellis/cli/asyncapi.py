"""`trellis asyncapi`: exports topics, bindings and content types as an AsyncAPI 3 document.

The package pyspark_trellis does the work, as for `trellis ask`.
"""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from trellis.cli.api_client import add_login, address_keys, api_url, given_url
from trellis.cli.ask import answer
from trellis.cli.history_arguments import (
    OWN_JOURNAL,
    add_definitions,
    add_journal,
    add_times,
    add_topology,
)
from trellis.cli.parsing import Commands, add_command, load_settings, number
from trellis.settings import Settings

#: The module of pyspark_trellis that exports the document.
_EXPORTING: Final = "pyspark_trellis.asyncapi.exporting"
#: The listeners that the document names. A listener's name is also the name of its protocol.
_LISTENERS: Final = ("amqp", "amqps", "mqtt", "mqtts", "ws", "wss")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis asyncapi`."""
    command = add_command(
        commands,
        "asyncapi",
        asyncapi,
        "export observed topics, bindings and content types as an AsyncAPI 3 document",
        "[--journal PLACE] [--definitions FILE|URL] [--output FILE] [--format yaml|json]",
    )
    command.add_argument(
        "--output", metavar="FILE", type=Path, help="file to write [standard output]"
    )
    command.add_argument(
        "--format",
        choices=("yaml", "json"),
        metavar="yaml|json",
        help="format of the document [json for a FILE that ends with .json, else yaml]",
    )
    command.add_argument(
        "--title", default="Messages of a Trellis broker", help="title of the document"
    )
    command.add_argument(
        "--api-version",
        dest="version",
        metavar="VERSION",
        default="1.0.0",
        help="version of the described API [1.0.0]",
    )
    command.add_argument(
        "--values",
        type=number(int, 0),
        default=20,
        metavar="N",
        help="turn a level of topics into a parameter if it has more than N different words [20]",
    )
    command.add_argument(
        "--server",
        dest="servers",
        action="append",
        default=[],
        metavar="URL",
        help="server of the document, such as amqps://HOST:5671 or ws://HOST:15675; may be given "
        "several times [the ports of the settings]",
    )
    command.add_argument(
        "--no-examples",
        dest="examples",
        action="store_false",
        help="leave out the examples of parameters, which are words of published topics",
    )
    group = command.add_argument_group(
        "history", "The journal with the published messages; `--journal none` reads no journal."
    )
    add_journal(group, required=False, default=OWN_JOURNAL)
    add_times(group)
    add_topology(command)
    add_definitions(command)
    command.set_defaults(job="asyncapi", ending="latest", traffic=None, as_of=None, follow=False)
    add_login(command, uses=[key for name in _LISTENERS for key in address_keys(name)])


def asyncapi(arguments: argparse.Namespace) -> int:
    """Write the AsyncAPI document that the arguments ask for.

    Raises CommandError, with exit code 2 for an error in the input.
    """
    if not arguments.servers:
        settings = load_settings(arguments).settings
        given = given_url(arguments.url) is not None
        url = api_url(arguments.url, settings) if given else None
        arguments.servers = _own_servers(settings, url)
    return answer(arguments, _EXPORTING, "asyncapi")


def _own_servers(settings: Settings, url: str | None) -> list[str]:
    """Return the URLs of the listeners that the settings enable.

    If `url`, the URL of the broker's HTTP API, is given, all URLs have its host. A listener whose
    port is 0, a free port chosen at the start, is left out.
    """
    urls = []
    for name in _LISTENERS:
        listener = getattr(settings, name)
        if listener.enabled and listener.port:
            host = (urlsplit(url).hostname if url else None) or _host(listener.addresses)
            urls.append(f"{name}://{f'[{host}]' if ':' in host else host}:{listener.port}")
    return urls


def _host(addresses: list[str]) -> str:
    """Return the first address that is not a wildcard (0.0.0.0, ::), else "localhost"."""
    for address in addresses:
        if not ipaddress.ip_address(address).is_unspecified:
            return address
    return "localhost"
