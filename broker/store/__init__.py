"""The store: keeps every confirmed change through a crash (docs/storage.md).

Modules, in reading order:

    contract     how a message is made durable: append, take, write, written
    state        the durable state in memory: what each entry changes
    memory       the store of a broker without a data directory
    durable      the store with a data directory
    opening      opens a data directory when the broker starts
    layout       the format of a record in the log
    codecs       converts the contents of messages
    records      encodes entries as records
    reading      decodes records into entries
    files        the files of the log: heads, indexes, scanning
    segments     the log: append, sync, read by position
    poison       stops the writers of a log or a stream after a failed sync
    liveness     counts the live entries of each file
    recovery     reads the log when it is opened, and deals with damage
    findings     damage that was found, and the quarantine directory
    survivors    finds the live entries of the log
    dropping     removes files without live entries
    checkpoint   frees the disk space of settled messages in other files
    catalog      definitions of queues, exchanges, users, ..., in SQLite
    values       definitions as JSON
    wal          checks the catalog's write-ahead log for damage
    disk, ram    files of the operating system, files in memory
    inspect      `trellis store verify`, `dump` and `repair`
    backup       `trellis store backup`
"""
