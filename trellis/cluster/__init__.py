"""A node of a cluster, which follows or owns a replicated log on a Kafka cluster.

Only this package imports the client library confluent-kafka, and only if the section [cluster]
names Kafka servers. Reading order:

    membership       one node from its start to the claim that makes it the owner
    following        a standby: the thread that follows the log, and claims it
    reporting        the reports of a node: its state, and the offset from which it would read
    ownership        the owner: ships batches, and ends the process when it is fenced
    retention        the owner's marks, and the trimming of the log
    format_upgrade   raises the format of batches once all nodes read a newer one
    listed_nodes     the list of the nodes for which the log is kept
    succession       the choice of the standby to which an owner hands the log over
    joining          the membership from the settings, with a log on Kafka
    clock            the clock of lease and silence

    client_options   options of producers, consumers and admin clients; log lines of the library
    client_errors    error texts
    topic            the topic: its id, settings, trimming; the offsets that nodes report
    topic_safety     properties of the topic that are unsafe
    appender         appends records, each at most once
    reader           reads records, and asks for the tip
    kafka_log        `KafkaLog`, the log as the nodes of a broker use it
    check            `trellis cluster check`: unsafe settings of Kafka
    status           `trellis cluster status`, `seed` and `forget`
    adopting         `trellis cluster adopt`: begins a log with an existing data directory
"""
