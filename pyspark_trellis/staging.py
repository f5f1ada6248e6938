"""Stages the rows of a batch in files beside the checkpoint, before any of them is published.

    <checkpoint>/trellis/<batch>/<name>.arrow     the rows of a task, in the order of their numbers
    <checkpoint>/trellis/<batch>/manifest.json    the files of the batch, in order
    <checkpoint>/trellis/<batch>/published        empty; there when all rows are published

Rows are numbered by their order in their file, and files by their order in the manifest.
No file is written twice, because few file systems of Hadoop can replace a file in one step. If
Spark repeats the batch, the files in the manifest are published again, and not the rows of the
repeated tasks. So each row has the same identity as before, although Spark may have divided the
batch into other tasks, and the broker drops the rows that it has already.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.storage import Storage

MANIFEST: Final = "manifest.json"
_PUBLISHED: Final = "published"
#: The number of rows that are converted to Python objects at once.
_ROWS: Final = 1_000


@dataclass(frozen=True)
class BatchManifest:
    """The files of a batch, in the order of their numbers."""

    files: tuple[str, ...]

    @classmethod
    def read(cls, storage: Storage, batch: str) -> BatchManifest | None:
        """Return the manifest of a batch; None if there is none yet. Raises PipelineError."""
        text = storage.read(f"{batch}/{MANIFEST}")
        if text is None:
            return None
        try:
            document = json.loads(text)
            return cls(tuple(document["files"]))
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                f"the manifest of batch {batch} beside the checkpoint is not valid: it is "
                "damaged, or another version of Trellis wrote it; run the query with that "
                "version, or start with a new checkpoint"
            ) from None

    def write(self, storage: Storage, batch: str) -> None:
        """Store the manifest of a batch that has none. Raises PipelineError."""
        storage.write(f"{batch}/{MANIFEST}", json.dumps({"files": list(self.files)}))


def published(storage: Storage, batch: str) -> bool:
    """True if all rows of a batch are published. Raises PipelineError."""
    return storage.read(f"{batch}/{_PUBLISHED}") is not None


def set_published(storage: Storage, batch: str) -> None:
    """Store that all rows of a batch are published. Raises PipelineError."""
    storage.write(f"{batch}/{_PUBLISHED}", "")


def stage(batches: Iterator[pa.RecordBatch], storage: Storage, batch: str) -> str | None:
    """Write the rows of a task to a file; return its name, None if there are no rows.

    Only one record batch is in memory at a time. Raises PipelineError.
    """
    first = next((each for each in batches if each.num_rows), None)
    if first is None:
        return None
    name = f"{uuid4().hex}.arrow"
    with tempfile.TemporaryDirectory(prefix="trellis-sink-") as scratch:
        local = Path(scratch, name)
        with pa.OSFile(str(local), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
            writer.write_batch(first)
            for each in batches:
                writer.write_batch(each)
        storage.put(local, f"{batch}/{name}")
    return name


def staged_rows(storage: Storage, batch: str, name: str) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a staged file. Raises PipelineError if it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="trellis-sink-") as scratch:
        local = storage.fetched(f"{batch}/{name}", Path(scratch))
        try:
            with pa.OSFile(str(local), "rb") as file, pa.ipc.open_stream(file) as reader:
                for each in reader:
                    for at in range(0, each.num_rows, _ROWS):
                        yield from each.slice(at, _ROWS).to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            raise PipelineError(
                f"cannot read the staged rows of batch {batch} in {name}: {error}; check that no "
                "other program deletes files beside the checkpoint"
            ) from None
