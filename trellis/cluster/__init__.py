"""A node of a cluster: a standby that follows a replicated log on Kafka, or the log's owner.

The owner is the active node, which serves clients. The owner appends its changes to the log in
batches, and a beat when it has no batch to append. A standby claims the log after `cluster.silence`
seconds without a record of the owner. The owner may act for `cluster.lease` seconds after it has
sent its last acknowledged record. A mark is a record with the state of the log: a reader may begin
at a mark once the records before it are removed.

Only this package imports the client library confluent-kafka, and only if the section [cluster]
names Kafka servers. Reading order:

    membership       one node from its start to the claim that makes it the owner
    following        a standby: the thread that follows the log, and may claim it
    reporting        the reports of a node: its state, and the offset from which it would read
    ownership        the owner: appends batches; ends its process if another node owns the log
    disk_watch       notices that the owner cannot write its disk
    retention        the owner's marks, and the removal of records that every node has
    format_upgrade   changes the encoding of batches once all nodes read a newer one
    listed_nodes     the list of the nodes for which the log is kept
    succession       the choice of the standby to which an owner hands the log over
    joining          the membership from the settings, with a log on Kafka
    clock            the clock that measures the lease and the silence

    client_options   options of producers, consumers and admin clients; log lines of the library
    client_errors    error texts
    topic            the topic: its id, settings, trimming; the offsets that nodes report
    topic_safety     properties of the topic that are unsafe
    topic_watch      checks these properties again while a node runs
    appender         appends records, each at most once
    reader           reads records, and asks for the tip: the offset of the next record
    kafka_log        `KafkaLog`, the log as the nodes of a broker use it
    check            `trellis cluster check`: unsafe settings of Kafka
    status           `trellis cluster status`, `seed` and `forget`
    adopting         `trellis cluster adopt`: begins a log with an existing data directory
"""
