"""`trellis replay`: publishes the messages in rows of a stream again."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final
from urllib.parse import urlsplit

from broker.stream.arrow import BatchView
from trellis.cli.actions import add_result, print_result
from trellis.cli.api_client import add_login, api_url, credentials, given_url
from trellis.cli.parsing import CommandError, Commands, add_command, load_settings, number
from trellis.cli.replay_publisher import ReplayPublisher
from trellis.cli.stream_source import StreamSource, add_range
from trellis.copied_properties import HEADER_HEAD, without_instructions
from trellis.progress import Interval
from trellis.settings import Settings

PORT_MAX: Final = 65_535
#: Largest size in bytes of a routing key of AMQP. A topic of MQTT may be longer.
KEY_MAX: Final = 255
#: Seconds between two lines of progress.
EVERY: Final = 1.0


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis replay`."""
    command = add_command(
        commands,
        "replay",
        replay_rows,
        "publish rows of a stream again",
        "QUEUE [--from N] [--to N] [--rate N] [--topic KEY] [--exchange NAME] [--amqp HOST:PORT] "
        "[--json] "
        "[--url URL] [--user NAME --password WORD]",
    )
    add_range(command)
    command.add_argument(
        "--rate",
        type=number(float, 0),
        metavar="N",
        default=0.0,
        help="publish at most N messages per second [as fast as the broker confirms them]",
    )
    command.add_argument("--topic", metavar="KEY", help="replay only rows with this routing key")
    command.add_argument(
        "--exchange", metavar="NAME", help="exchange to publish to [the exchange of each row]"
    )
    command.add_argument(
        "--amqp",
        metavar="HOST:PORT",
        help="AMQP listener to publish to [host of --url, else of the settings; AMQP port of the "
        "settings]",
    )
    add_result(command)
    add_login(command, uses=("amqp.host", "amqp.port"))


def replay_rows(arguments: argparse.Namespace) -> int:
    """Publish the message of each chosen row, and wait for all confirms.

    The message has the content header, body and routing key of the row, and is published to the
    exchange of the row. With --exchange, the message is published to that exchange instead, without
    the headers CC and BCC. The exit code is 1 if the broker refused a message, or if a routing key
    is too long for AMQP.
    """
    settings = load_settings(arguments).settings
    host, port = _target(arguments, settings)
    user, password = credentials(arguments, settings)
    interval = Interval(EVERY)
    too_long = 0
    at = arguments.first or 0  # The first offset whose message is not published yet.
    with ReplayPublisher(host, port, user, password, arguments.vhost) as publisher:
        try:
            for _, batch, first, end in StreamSource(arguments).batches():
                for row in range(first, end):
                    at = int(batch.base) + row
                    key = _routing_key(batch, row)
                    if arguments.topic not in (None, key.decode(errors="replace")):
                        continue
                    if len(key) > KEY_MAX:
                        too_long += 1
                        continue
                    if arguments.rate:
                        ahead = publisher.published / arguments.rate - interval.elapsed
                        if ahead > 0:
                            publisher.wait_for_confirms()
                            time.sleep(ahead)
                    exchange = (
                        arguments.exchange.encode()
                        if arguments.exchange is not None
                        else batch.text("exchange", row)
                    )
                    header, body = batch.text("content_header", row), batch.text("body", row)
                    header = header[:HEADER_HEAD] + without_instructions(
                        header[HEADER_HEAD:], arguments.exchange is not None
                    )
                    publisher.publish(exchange, key, header, body, at)
                    at += 1
                    if interval.due():
                        print(
                            f"offset {at - 1}: {publisher.published} messages published, "
                            f"{publisher.confirmed} confirmed, "
                            f"{publisher.published / interval.elapsed:.0f} messages/s",
                            file=sys.stderr,
                        )
            publisher.wait_for_confirms()
        except CommandError as error:
            if not publisher.published:
                raise
            raise CommandError(f"{error}; {publisher.summary(at)}", error.code) from None
        except KeyboardInterrupt:
            print(f"trellis: replay stopped; {publisher.summary(at)}", file=sys.stderr)
            raise
    text = f"{publisher.confirmed} messages published again and confirmed" + (
        f", {publisher.refused} refused" if publisher.refused else ""
    )
    if too_long:
        text += (
            f"; {too_long} not published, because their MQTT topics are longer than a routing key "
            f"of AMQP ({KEY_MAX} bytes)"
        )
    result = {"confirmed": publisher.confirmed, "refused": publisher.refused}
    print_result(arguments, text, **result, too_long=too_long)
    return 1 if publisher.refused or too_long else 0


def _routing_key(batch: BatchView, row: int) -> bytes:
    """Return the routing key of a row, or its topic if the message was published over MQTT."""
    return batch.text("topic" if batch.is_null("routing_key", row) else "routing_key", row)


def _target(arguments: argparse.Namespace, settings: Settings) -> tuple[str, int]:
    """Return the AMQP host and port to publish to. Raises CommandError for an invalid --amqp.

    The host and the port are taken from --amqp. Without this flag, the host comes from --url, else
    from TRELLIS_URL, else from the settings, and the port is the AMQP port of the settings.
    """
    if arguments.amqp is not None:
        host, _, port = arguments.amqp.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise CommandError(
                f"--amqp must be HOST:PORT, such as 127.0.0.1:5672, got '{arguments.amqp}'", 2
            )
        return host, int(port)
    host_of_url = urlsplit(api_url(arguments.url, settings)).hostname
    given = given_url(arguments.url) is not None
    host = host_of_url if given and host_of_url else settings.amqp.addresses[0]
    return host, settings.amqp.port
