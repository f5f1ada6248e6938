"""Definitions as JSON documents: import them from a file or a request, export them.

A document has the format of RabbitMQ's definitions files.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from broker.broker import Broker
from broker.definitions import rabbitmq as definitions
from broker.errors import BrokerError
from trellis import logs
from trellis.auth.passwords import check_hash, show_hash
from trellis.settings import SettingsError

#: Largest number of refused definitions that get a log line each.
MAX_LOGGED = 100
#: Rows that are made or encoded at once, before other work gets a turn.
SLICE_ROWS = 200
#: Sections of the document of one virtual host.
VHOST_SECTIONS = ("exchanges", "queues", "bindings", "policies")

_HEAD = {"product_name": "Trellis"}


def import_(broker: Broker, document_json: bytes) -> definitions.ImportReport:
    """Import a definitions document, and report what was imported and what was refused.

    Raises ValueError for text that is not a definitions document.
    """
    try:
        document = msgspec.json.decode(document_json)
        return definitions.import_(broker, document, check_hash)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from None
    except BrokerError as error:
        raise ValueError(str(error)) from None


def export(broker: Broker) -> bytes:
    """Return all definitions as JSON, without a pause for other work."""
    return _encode({**_HEAD, **definitions.export(broker, show_hash)})


async def export_in_slices(broker: Broker, vhost: str | None = None) -> bytes:
    """Return all definitions as JSON, in slices so that the event loop is not blocked.

    With `vhost`, return those of one virtual host; their rows do not name it.
    """
    document: dict[str, list[definitions.Row]] = {
        section: [] for section in (definitions.SECTIONS if vhost is None else VHOST_SECTIONS)
    }
    for at, (section, row) in enumerate(definitions.export_rows(broker, show_hash)):
        if vhost is None:
            document[section].append(row)
        elif section in document and row["vhost"] == vhost:
            document[section].append({key: value for key, value in row.items() if key != "vhost"})
        if at % SLICE_ROWS == 0:
            await asyncio.sleep(0)
    return await asyncio.get_running_loop().run_in_executor(None, _encode, {**_HEAD, **document})


def _encode(document: dict[str, Any]) -> bytes:
    """Encode a document in slices. Run it in a thread: other threads run between the slices."""
    parts: list[bytes] = []
    for section, value in document.items():
        if isinstance(value, list):
            pieces = [
                msgspec.json.encode(value[at : at + SLICE_ROWS], enc_hook=str)[1:-1]
                for at in range(0, len(value), SLICE_ROWS)
            ]
            text = b"[" + b",".join(pieces) + b"]"
        else:
            text = msgspec.json.encode(value)
        parts.append(msgspec.json.encode(section) + b":" + text)
    return b"{" + b",".join(parts) + b"}"


def import_file(broker: Broker, path: str) -> None:
    """Import the definitions file of the settings, and log its refused definitions.

    Raises SettingsError for a file that cannot be read or is not a definitions document.
    """
    try:
        imported = import_(broker, Path(path).expanduser().read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"definitions.file: {path}: {what}") from None
    for line in imported.refused[:MAX_LOGGED]:
        logs.warning("definition_refused", reason=line)
    if len(imported.refused) > MAX_LOGGED:
        logs.warning("definition_refused", more=len(imported.refused) - MAX_LOGGED)
    logs.info("definitions", file=path, **imported.imported)
