"""Definitions from files and over HTTP: decoded here, taken in by the core."""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker import definitions
from broker.core import Broker
from broker.errors import BrokerError
from trellis import logs
from trellis.passwords import check_hash, show_hash
from trellis.settings import SettingsError

#: Refusals that get a line each in the log.
LINES = 100


def take_in(broker: Broker, octets: bytes) -> definitions.Imported:
    """Raises ValueError for what is no such document."""
    try:
        document = msgspec.json.decode(octets)
        return definitions.load(broker, document, check_hash)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from None
    except BrokerError as error:
        raise ValueError(str(error)) from None


def give_out(broker: Broker) -> bytes:
    """All definitions as JSON."""
    return msgspec.json.format(msgspec.json.encode(definitions.dump(broker, show_hash), enc_hook=str), indent=2)


def take_in_file(broker: Broker, path: str) -> None:
    """The file of the settings. Raises SettingsError for one that cannot be read; what is refused in it is logged."""
    try:
        imported = take_in(broker, Path(path).expanduser().read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"definitions.file: {path}: {what}") from None
    for line in imported.refused[:LINES]:
        logs.warning("definition_refused", reason=line)
    if len(imported.refused) > LINES:
        logs.warning("definition_refused", more=len(imported.refused) - LINES)
    logs.info("definitions", file=path, **imported.taken)
