"""Streams: queues that remember (docs/streams.md). What is published there is written once and read
from any offset, often.

    put(message) --> StreamQueue --take--> Portion.write [writer thread] --> rows --> arrow --> archive (segments)
                          |                     | the log's sync                                  |
                     readers <-- pages <------- written: durable offset <-------------------------+

Reading order:

    template     octets that pyarrow writes                arrow        record batches, written and read with them
    columns      columns, written by runs of equal rows    rows         messages as rows
    segments     files: `<epoch>-<base offset>.arrow`, their index
    archive      the segments of one stream                finding      reading them at a start
    leftover     those of deleted streams                  inspect      looking into all of them, for `trellis store`
    pages        what several readers read at once         offsets      where a reader begins
    queue        the queue itself, and its readers         streams      all streams of a broker
    topology     what is recorded of bindings
"""
