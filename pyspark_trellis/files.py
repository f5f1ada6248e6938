"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from pyspark_trellis.errors import PipelineError


def write(path: Path, text: str) -> None:
    """Whole or not at all: somebody may read it at any time. (What is no file, such as /dev/stdout,
    is written into.) Raises PipelineError."""
    draft = path if path.exists() and not path.is_file() else path.with_name(path.name + ".tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        if draft is not path:
            draft.replace(path)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror}") from None
