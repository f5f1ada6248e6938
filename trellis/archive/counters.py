"""The counts of the archive, for the metrics."""

from __future__ import annotations


class Counters:
    """Counts of uploads and fetches since the broker started, and of segments yet to upload."""

    def __init__(self) -> None:
        self.uploaded_segments = 0
        self.uploaded_files = 0
        self.uploaded_bytes = 0
        self.upload_failures = 0
        self.fetched_files = 0
        self.fetched_bytes = 0
        self.fetch_failures = 0
        #: Segments, and their rows, that retention removed before they were uploaded.
        self.dropped_segments = 0
        self.dropped_rows = 0
        #: Segments that wait for their upload, and their size in bytes.
        self.waiting_segments = 0
        self.waiting_bytes = 0
        #: Streams that are not uploaded any more, because their rows do not fit the archive.
        self.refused_streams = 0
        #: Text of the last failure; "" if there was none.
        self.last_error = ""
