"""Finds the journals that a query reads: named journals, or all that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import (
    Directory,
    JournalStream,
    directory_name,
    journal_name,
    name_parts,
)
from pyspark_trellis.remote import Remote, RemoteBroker, stream_names
from pyspark_trellis.segments import name_of

#: The stream with the history of bindings, which no pattern matches.
_TOPOLOGY: Final = "$topology"


class QueryJournals:
    """The journals that the options of a query name. The names of options are in lowercase."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options `path`, `journal` and `journalPattern`. Raises PipelineError."""
        self._options: Final = options
        self._path: Final = options.get("path", "")
        if not self._path:
            raise PipelineError(
                "the query names no journal: use .load(PATH), where PATH is the directory of a "
                "stream, or http://HOST:15672"
            )
        named, pattern = options.get("journal"), options.get("journalpattern")
        if named is not None and pattern is not None:
            raise PipelineError(
                "the options journal and journalPattern both name journals: set only one of them"
            )
        self._pattern: Final = _compiled(pattern)
        #: The names of the journals; None if a pattern names them, or if `path` is a directory of
        #: one journal.
        self._names: Final = None if named is None else _split(named)
        #: True if the query always reads the same single journal.
        self.single: Final = pattern is None and (self._names is None or len(self._names) == 1)
        #: The streams by name. A stream is used again, because it caches the positions in its
        #: segments.
        self._streams: Final[dict[str, JournalStream]] = {}

    @property
    def remote(self) -> bool:
        """True if a running broker serves the journals over HTTP."""
        return self._path.startswith(("http://", "https://"))

    def streams(self) -> dict[str, JournalStream]:
        """Return the streams by name. For a pattern, search for matching streams at each call.

        Raises PipelineError.
        """
        if self._names is None and self._pattern is None and not self.remote:
            if not self._streams:
                stream = Directory(self._directory)
                self._streams[stream.journal] = stream
            return dict(self._streams)
        names = self._matching_names() if self._pattern is not None else self._names
        if names is None:  # The broker's URL without a journal: `Remote.of` raises PipelineError.
            return {"": Remote.of(self._path, self._options)}
        for name in names:
            if name not in self._streams:
                self._streams[name] = self._stream(name)
        return {name: self._streams[name] for name in names}

    @property
    def _directory(self) -> str:
        return self._path.removeprefix("file://")

    def _stream(self, name: str) -> JournalStream:
        if self.remote:
            return Remote.of(self._path, {**self._options, "journal": name})
        vhost, queue = name_parts(name)
        path = Path(self._directory, directory_name(vhost), directory_name(queue))
        return Directory(str(path), name)

    def _matching_names(self) -> list[str]:
        """Return the names of the streams that match the pattern, sorted."""
        assert self._pattern is not None
        names = (
            stream_names(RemoteBroker.of(self._path, self._options))
            if self.remote
            else _names_in(Path(self._directory))
        )
        return sorted(
            name
            for name in names
            if name_parts(name)[1] != _TOPOLOGY and self._pattern.fullmatch(name)
        )


def one_stream(options: Mapping[str, str]) -> JournalStream:
    """Return the only stream that the options name. Raises PipelineError if they name several."""
    journals = QueryJournals(options)
    if not journals.single:
        raise PipelineError(
            "this command reads one journal, but the options name several: name one journal, and "
            "do not set journalPattern"
        )
    [stream] = journals.streams().values()
    return stream


def _split(text: str) -> list[str]:
    """Return the names in the option `journal`, in the spelling of `journal_name`."""
    names = [journal_name(*name_parts(name.strip())) for name in text.split(",") if name.strip()]
    if not names:
        raise PipelineError(
            "option journal has an empty name: each name must be QUEUE or VHOST/QUEUE"
        )
    return list(dict.fromkeys(names))


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise PipelineError(
            f"option journalPattern is '{pattern}', which is not a valid regular expression: "
            f"{error}"
        ) from None


def _names_in(streams: Path) -> list[str]:
    """Return the names of the streams in a broker's directory `streams`. Raises PipelineError."""
    try:
        return [
            journal_name(unquote(vhost.name), unquote(queue.name))
            for vhost in streams.iterdir()
            if vhost.is_dir()
            for queue in vhost.iterdir()
            if queue.is_dir() and any(name_of(file.name) for file in queue.iterdir())
        ]
    except OSError as error:
        raise PipelineError(
            f"cannot read the streams in {streams}: {error.strerror}; with journalPattern, set the "
            "path to <data directory>/streams"
        ) from None
