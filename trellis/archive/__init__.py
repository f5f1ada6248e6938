"""The archive: uploads full segments of streams as Parquet, and fetches what retention removed.

    event loop                                      worker, a child process
    ArchiveService  --Upload, FetchFile, ...--> Worker --> Uploader, restore_file --> ArchiveStorage
                    <--Uploaded, Fetched, ...-----

The worker makes all requests to the archive and all conversions of rows, so that they never block
the event loop. Only the worker loads pyarrow. docs/streams.md ("The archive") describes the files.

Modules, in reading order:

    names           names of the files in the archive
    contract        the messages between service and worker
    cache           the fetched segments
    counters        counts for the metrics
    fetch_queue     the requests of readers, in the order in which the worker gets them
    service         the broker's end: what to upload and to fetch next; retries, cache, counters
    progress        how far each stream is uploaded, for the next start

trellis/worker_process.py starts the worker, and restarts a worker that ended. In the worker:

    storage         the files of the archive: in an object store, or in a directory
    listing         finds the files of a stream by offset and by time, with few requests
    uploading       a segment --> Parquet files in the archive
    restoring       a Parquet file --> a segment in the cache
    worker          serves the messages of the service
"""
