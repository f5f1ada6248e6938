"""The data directory of a broker: made at the start, and readable only for the broker's user."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trellis.settings import Settings, SettingsError


def open_data_directory(settings: Settings) -> Path | None:
    """Return the data directory, and create it if it is missing; return None for `:memory:`.

    Raises SettingsError if the directory cannot be created or written to.
    """
    try:
        directory = settings.data.directory
    except RuntimeError as error:
        raise SettingsError(
            "data.dir: the home directory of this user is unknown; set data.dir (TRELLIS_DATA_DIR, "
            "--data-dir) to an absolute path, or to :memory: to store nothing"
        ) from error
    if directory is None:
        return None
    # Imported here, because a broker in memory does not need the modules of the durable store.
    from trellis.server import file_modes

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SettingsError(
            f"data.dir: {directory} cannot be written to: {error.strerror}; make it writable for "
            "this user, or set data.dir (TRELLIS_DATA_DIR, --data-dir)"
        ) from error
    file_modes.restrict(directory)
    return directory
