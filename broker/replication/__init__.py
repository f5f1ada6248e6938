"""Replication: one active broker and hot standbys that follow a replicated log.

The replicated log is a partition of a cluster that speaks the Kafka protocol. This package holds
the rules that decide which broker owns the log, and which records are valid. (A record that is not
valid has no effect.) The package does not know Kafka, opens no socket and reads no clock: its
generators yield steps, such as "append this record", and an engine carries them out. So a
simulation can crash, pause and delay every step.

Reading order:

    errors      the error that stops a node
    timing      the time limits of a cluster
    records     the records of the log, and their encoding
    judge       decides for each record whether it is valid
    contract    the replicated log, the replica's data directory, and the steps of an engine
    assembly    joins the chunks of batches
    follower    reads the log in order, and applies its batches
    owner       the active broker: appends batches, and knows how long it may act
    standby     a standby: follows the log, and claims it when the owner is silent
    payload     the content of a batch: records, definitions and rows of streams
    formats     the encodings of batches that a version reads, and the upgrade to a newer one
    directory   the data directory of a standby
    warm_survivors
                the live records of a standby's log, kept up to date
    compaction  frees the disk space of settled messages on a standby
    description the description of a node in its claims: addresses, settings, topic
    report      the report of a node: its state, and the offset from which it would read
    adoption    a data directory becomes the beginning of a replicated log
    read_sizes  the size of the log, as a follower has read it
    trimming    the list of the nodes, and which part of the log all of them have
    figures     the figures of a node for the metrics
    memory      a replicated log in memory
    engine      the interface of the replicated log, and the engine that carries out a node's steps
"""
