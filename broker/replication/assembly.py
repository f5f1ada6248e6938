"""Joins the chunks of batches, and checks that each batch continues the previous batch."""

from __future__ import annotations

from broker.replication.contract import ReceivedBatch, ReplicaDiverged
from broker.replication.records import REMEDY, BatchChunk, ClusterState


class BatchAssembly:
    """The chunks of the batch that is being received.

    Callers add only chunks that have an effect: chunks that the owner of the log has written (see
    `Judge`).
    """

    def __init__(self) -> None:
        self._chunks: list[BatchChunk] = []
        self._offset = 0

    def add(self, offset: int, chunk: BatchChunk, state: ClusterState) -> ReceivedBatch | None:
        """Add the chunk at an offset of the log. Return the batch if it is complete now, else None.

        `state` is the state of the log before this chunk; its fields name the last complete batch.

        Raises ReplicaDiverged if the batch does not continue the previous batch, or if a chunk is
        missing.
        """
        if chunk.chunk == 0:
            expected = (state.number + 1, state.position, state.batch_offset)
            received = (chunk.number, chunk.position_before, chunk.offset_before)
            if received != expected:
                raise ReplicaDiverged(
                    f"batch {chunk.number} at offset {offset} follows position {received[1]} and "
                    f"the batch at offset {received[2]}, but this node has batch {state.number} "
                    f"with position {state.position} at offset {state.batch_offset}; {REMEDY}"
                )
            self._chunks, self._offset = [], offset
        first = self._chunks[0] if self._chunks else chunk
        if (chunk.number, chunk.chunks, chunk.chunk) != (
            first.number,
            first.chunks,
            len(self._chunks),
        ):
            raise ReplicaDiverged(
                f"the replicated log has chunk {chunk.chunk} of batch {chunk.number} at offset "
                f"{offset}, but chunk {len(self._chunks)} of batch {first.number} must follow; "
                f"{REMEDY}"
            )
        self._chunks.append(chunk)
        if len(self._chunks) < chunk.chunks:
            return None
        payload = b"".join(part.payload for part in self._chunks)
        self._chunks = []
        return ReceivedBatch(
            chunk.number, self._offset, chunk.position_before, chunk.position, payload
        )

    @property
    def is_empty(self) -> bool:
        """True if there are no chunks of an incomplete batch."""
        return not self._chunks

    def discard(self) -> None:
        """Drop an incomplete batch, because another node has claimed the log: no further chunk will
        come.
        """
        self._chunks = []
