"""What survives: everything that was confirmed, with its place in the queue (docs/storage.md).

Reading order:

    contract     entries, positions, tickets, batches: all that the core knows of a store
    state        what entries mean, in memory           memory      the store that forgets
    durable      the store that remembers               opening     a data directory, when the broker starts
    layout       how a record stands                    codecs      how contents are written
    records      entries as octets                      reading     octets as entries
    files        files of records                       segments    the log
    recovery     reading it at a start                  findings    what was damaged, and where that is kept
    survivors    what of it is live                     checkpoint  giving space back
    catalog      definitions, in SQLite                 values      how they are written
    disk         the seam to the operating system       inspect, backup    for `trellis store`
"""
