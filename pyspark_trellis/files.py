"""Writes the output files of commands."""

from __future__ import annotations

from pathlib import Path

from pyspark_trellis.errors import PipelineError


def write(path: Path, text: str) -> None:
    """Write a file atomically, so that a concurrent reader never sees a part of it.

    If the path is not a regular file, such as /dev/stdout, the text is written to it directly.
    Raises PipelineError.
    """
    draft = path if path.exists() and not path.is_file() else path.with_name(path.name + ".tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        if draft is not path:
            draft.replace(path)
    except OSError as error:
        raise PipelineError(f"cannot write {path}: {error.strerror or error}") from None
