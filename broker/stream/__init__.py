"""Streams: queues that keep their messages, for any number of readers (docs/streams.md).

A message published to a stream is written once as a row, and can be read from any offset, any
number of times, until retention removes it.

    put(message) --> StreamQueue --take_write--> RowsWrite.write [writer thread]
                          |                      rows --> arrow --> segments
                          |                      then the log's sync, then settle: the end moves
                     readers <-- pages <-------- segments

Modules, in reading order:

    template     bytes of a schema and a record batch, as pyarrow writes them
    arrow        record batches of Arrow's IPC format: build and read
    columns      columns of a batch that is built, from runs of equal values
    row_codecs   encoders and parsers for rows, which the front ends provide
    captured_rows
                 the messages of the next batch, and the encoded batch
    rows         converts messages to rows
    segments     files `<epoch>-<base offset>.arrow` and their indexes
    open_files   the open files of all streams, at most a given number
    archived     the rows of one stream that are in the archive, and what the archive must do
    full_segments
                 the interface through which a stream reports its full segments
    segment_writer
                 writes the batches of one stream to segments
    local_segments
                 the durable segments of one stream
    rows_write   the rows of one stream in one batch of the store
    removal      removes the files that retention drops, and the files of a deleted stream
    replica      the files of streams on a node of a cluster that follows the replicated log
    batch_scan   scans the batches of a segment
    segment_topics
                 the summaries of the topics of full segments
    recovery     reads the segments of a stream when the broker starts
    leftover     removes the files of deleted streams
    inspect      `trellis store verify` and `repair` for streams
    pages        pieces of segments, read once for several readers
    offsets      finds the offset at which a reader begins
    reader       a reader: one consumer, and the offset of its next row
    queue        the queue, which serves its readers
    streams      all streams of a broker

StreamQueue.run serves the readers. The reader of an AMQP consumer is AmqpStreamConsumer in
protocols/amqp/channel/streaming.py; docs/streams.md ("How it is built") follows a read.
"""
