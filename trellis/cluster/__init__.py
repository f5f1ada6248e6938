"""The replicated log of a broker on a Kafka cluster, over the client library confluent-kafka.

Only this package imports confluent-kafka, and the broker imports this package only if the section
[cluster] names Kafka servers. Reading order:

    client_options   options of producers, consumers and admin clients; log lines of the library
    client_errors    error texts
    topic            the topic: its id, settings, trimming; the offsets that nodes report
    appender         appends records, each at most once
    reader           reads records, and asks for the tip
    kafka_log        `KafkaLog`, the log as the nodes of a broker use it
    check            `trellis cluster check`: unsafe settings of Kafka
"""
