"""The metrics of the archive of streams."""

from __future__ import annotations

from trellis.archive.fetch_queue import WANTED_MAX
from trellis.archive.service import ArchiveService
from trellis.monitoring.page import MetricsPage


def add_archive(page: MetricsPage, archive: ArchiveService) -> None:
    """Add to the page the metrics of the archive."""
    counters = archive.counters
    page.gauge(
        "trellis_archive_up",
        "1 if the archive answered the last request, or if no request was made yet; 0 while the "
        "archive is unreachable.",
        archive.up,
    )
    page.gauge(
        "trellis_archive_waiting_segments",
        "Number of full stream segments that wait for their upload to the archive.",
        counters.waiting_segments,
    )
    page.gauge(
        "trellis_archive_waiting_bytes",
        "Size of the stream segments that wait for their upload to the archive, in bytes.",
        counters.waiting_bytes,
    )
    page.gauge(
        "trellis_archive_backlog_bytes",
        "Limit of the bytes that wait for their upload (stream.archive_backlog). Above the limit, "
        "retention removes segments that were not uploaded.",
        archive.backlog,
    )
    page.counter(
        "trellis_archive_uploaded_segments",
        "Total number of stream segments that were uploaded to the archive, or found there.",
        counters.uploaded_segments,
    )
    page.counter(
        "trellis_archive_uploaded_files",
        "Total number of files that were written to the archive.",
        counters.uploaded_files,
    )
    page.counter(
        "trellis_archive_uploaded_bytes",
        "Total size of the files that were written to the archive, in bytes.",
        counters.uploaded_bytes,
    )
    page.counter(
        "trellis_archive_upload_failures",
        "Total number of attempts to upload a stream segment that failed.",
        counters.upload_failures,
    )
    page.counter(
        "trellis_archive_fetched_files",
        "Total number of files that were fetched from the archive for readers.",
        counters.fetched_files,
    )
    page.counter(
        "trellis_archive_fetched_bytes",
        "Total size of the files that were fetched from the archive, in bytes.",
        counters.fetched_bytes,
    )
    page.counter(
        "trellis_archive_fetch_failures",
        "Total number of attempts to read from the archive that failed.",
        counters.fetch_failures,
    )
    page.gauge(
        "trellis_archive_waiting_fetches",
        "Number of files and offsets that readers need from the archive; at most "
        f"{WANTED_MAX:,}. Requests of further readers are dropped, and repeated later.",
        len(archive.fetches),
    )
    page.gauge(
        "trellis_archive_cache_bytes",
        "Size of the fetched stream segments in the data directory, in bytes.",
        archive.cache.size,
    )
    page.counter(
        "trellis_archive_dropped_segments",
        "Total number of stream segments that retention removed before they were uploaded, because "
        "the backlog was full.",
        counters.dropped_segments,
    )
    page.counter(
        "trellis_archive_dropped_rows",
        "Total number of stream rows that are lost, because retention removed them before their "
        "upload.",
        counters.dropped_rows,
    )
    page.gauge(
        "trellis_archive_refused_streams",
        "Number of streams that are not uploaded any more, because their rows do not fit the "
        "archive or are damaged.",
        counters.refused_streams,
    )
    page.counter(
        "trellis_archive_workers_lost",
        "Total number of worker processes of the archive that ended unexpectedly.",
        0 if archive.worker is None else archive.worker.lost,
    )
