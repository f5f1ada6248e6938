"""The store: keeps every confirmed change through a crash (docs/storage.md).

Modules, in reading order:

    contract     how a message is made durable: append, take, write, written
    audit        the audit trail: which user changed which definition
    stream_contract
                 the rows of streams in a batch, and their files to remove
    entries      the entries that the broker appends
    state        the durable state in memory: what each entry changes
    memory       the store of a broker without a data directory
    durable      the store with a data directory
    durable_batch, paged_messages
                 a batch of this store, and messages that the log does not have yet
    opening      opens a data directory when the broker starts
    layout       the format of a record in the log
    codecs       converts the contents of messages
    record_parts, batch_records
                 parts of records, and the records of a batch
    records      encodes entries as records
    reading      decodes records into entries
    received     records that another node of a cluster encoded
    files        the files of the log: heads, indexes, scanning
    segments     the log: append, sync
    log_reader   reads records of the log by position
    poison       stops the writers of a log or a stream after a failed sync
    liveness     counts the live entries of each file
    replay       what a recovery reports, and the receiver of the records
    file_order   which files were dropped, and which follow each other
    recovery     reads the log when it is opened, and deals with damage
    findings     damage that was found, and the quarantine directory
    survivors    finds the live entries of the log
    live_messages
                 the live messages of one scan of the log, or of a log that is followed
    dropping     removes files without live entries
    checkpoint, checkpoint_file
                 frees the disk space of settled messages in other files
    checkpoint_schedule
                 when a checkpoint is worth it
    catalog      definitions of queues, exchanges, users, ..., in SQLite
    values       definitions as JSON
    renaming     names that are not UTF-8, and the repair of them
    wal          checks the catalog's write-ahead log for damage
    disk, ram    files of the operating system, files in memory
    inspect      `trellis store verify`, `dump` and `repair`
    backup       `trellis store backup`
"""
