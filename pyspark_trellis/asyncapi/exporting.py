"""Runs the export of `trellis asyncapi`: reads a journal and bindings, writes the document."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark_trellis.answering import options_of
from pyspark_trellis.arrow_feed import JournalRange
from pyspark_trellis.asyncapi.document import DocumentOptions, document
from pyspark_trellis.asyncapi.observations import Observations, observe
from pyspark_trellis.asyncapi.rendering import Document, Server
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.files import write
from pyspark_trellis.job_bindings import NONE, read_bindings
from pyspark_trellis.progress import PipelineProgress

_PROTOCOLS: Final = ("amqp", "amqps", "mqtt", "mqtts", "ws", "wss")


def run(arguments: argparse.Namespace) -> int:
    """Write the document that the arguments of `trellis asyncapi` describe; return 0.

    Raises PipelineError.
    """
    output: Path | None = arguments.output
    if output is not None and not output.absolute().parent.is_dir():
        raise PipelineError(
            f"cannot write {output}: the directory {output.absolute().parent} does not exist; "
            "create it"
        )
    as_json = _as_json(arguments.format, output)
    servers = [_server(text) for text in arguments.servers]
    journal = None
    if arguments.journal == NONE:
        arguments.journal = None
        if arguments.definitions is None:
            raise PipelineError(
                "--journal none reads no messages, so the bindings are required: set --definitions"
            )
    else:
        journal = JournalRange(
            options_of(arguments),
            arguments.ending,
            _micros(arguments.since),
            _micros(arguments.until),
        )
    bindings = read_bindings(arguments)
    progress = PipelineProgress()
    progress.say("asyncapi  reading messages")
    observed = Observations([]) if journal is None else observe(journal, arguments.values)
    progress.end()
    options = DocumentOptions(arguments.title, arguments.version, servers, arguments.examples)
    text = _text(document(observed, bindings.current, options, bindings.sources), as_json)
    if output is None:
        print(text, end="")
    else:
        write(output, text)
        print(f"{output} written: {len(observed.addresses):,} addresses")
    return 0


def _micros(time: float | None) -> int | None:
    return None if time is None else int(time * 1_000_000)


def _as_json(form: str | None, output: Path | None) -> bool:
    """True if the format is JSON; without --format, the suffix of the file decides."""
    if form is None:
        return output is not None and output.suffix == ".json"
    return form == "json"


def _text(document: Document, as_json: bool) -> str:
    """Return the document as JSON or YAML. Raises PipelineError if PyYAML is not installed."""
    if as_json:
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    try:
        import yaml
    except ImportError:
        raise PipelineError(
            "cannot write YAML: PyYAML is not installed. Run pip install "
            "'trellis-broker[asyncapi]', or write JSON with --format json"
        ) from None
    text: str = yaml.dump(
        document, Dumper=_dumper(yaml), sort_keys=False, allow_unicode=True, width=100
    )
    return text


def _dumper(yaml: object) -> type:
    """Return a YAML dumper that writes no anchors, because some AsyncAPI tools cannot read them."""
    base: type = yaml.SafeDumper  # type: ignore[attr-defined]
    return type("_PlainDumper", (base,), {"ignore_aliases": lambda self, data: True})


def _server(text: str) -> Server:
    """Return the server of a URL such as mqtt://HOST:1883. Raises PipelineError."""
    try:
        url = urlsplit(text)
        valid = url.scheme in _PROTOCOLS and url.hostname and (url.port or True)
    except ValueError:  # raised by urlsplit, or by `port`
        valid = False
    if not valid:
        raise PipelineError(
            f"--server {text}: expected PROTOCOL://HOST:PORT with one of the protocols "
            f"{', '.join(_PROTOCOLS)}"
        )
    return Server(url.scheme, url.netloc.rpartition("@")[2])
