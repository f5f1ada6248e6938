"""Definitions as JSON documents: import them from a file or a request, export them.

A document has the format of RabbitMQ's definitions files.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker.broker import Broker
from broker.definitions import exporting
from broker.definitions import rabbitmq as definitions
from broker.errors import BrokerError
from trellis import logs
from trellis.auth.passwords import check_hash, show_hash
from trellis.settings import SettingsError

#: Largest number of refused definitions that get a log line each.
MAX_LOGGED = 100
#: Sections of the document of one virtual host.
VHOST_SECTIONS = ("parameters", "policies", "exchanges", "queues", "bindings")

#: The beginning of every exported document.
HEAD = {"product_name": "Trellis"}


def import_(broker: Broker, document_json: bytes) -> definitions.ImportReport:
    """Import a definitions document, and report what was imported and what was refused.

    Raises ValueError for text that is not a definitions document.
    """
    try:
        document = msgspec.json.decode(document_json)
        return definitions.import_(broker, document, check_hash)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the document is not JSON: {error}") from None
    except BrokerError as error:
        raise ValueError(str(error)) from None


def export(broker: Broker) -> bytes:
    """Return all definitions as JSON. The event loop does no other work during the export."""
    document = {**HEAD, **exporting.export(broker, show_hash)}
    return msgspec.json.encode(document, enc_hook=str)


def import_file(broker: Broker, path: str) -> None:
    """Import the definitions file of the settings, and log its refused definitions.

    Raises SettingsError for a file that cannot be read or is not a definitions document.
    """
    try:
        imported = import_(broker, Path(path).expanduser().read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else error
        raise SettingsError(f"definitions.file: {path}: {what}") from None
    for line in imported.refused[:MAX_LOGGED]:
        logs.warning("definition_refused", reason=line)
    if len(imported.refused) > MAX_LOGGED:
        logs.warning("definition_refused", more=len(imported.refused) - MAX_LOGGED)
    for line in imported.notes[:MAX_LOGGED]:
        logs.info("definition_note", note=line)
    if len(imported.notes) > MAX_LOGGED:
        logs.info("definition_note", more=len(imported.notes) - MAX_LOGGED)
    logs.info("definitions", file=path, **imported.imported)
