"""What survives: everything that was confirmed, with its place in the queue (docs/storage.md).

Reading order:

    contract     entries, positions, tickets, batches: all that the core knows of a store
    state        what entries mean, in memory           memory      the store that forgets
    durable      the store that remembers               opening     a data directory, when the broker starts
    records      entries as octets                      files       files of records
    segments     the log                                recovery    reading it at a start
    survivors    what of it is live                     checkpoint  giving space back
    catalog      definitions, in SQLite                 values      how they are written
    disk         the seam to the operating system       inspect, backup    for `trellis store`
"""
