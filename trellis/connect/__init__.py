"""`trellis connect`: a process that copies messages between the broker, HTTP services and Kafka.

    queue or stream --> WebhookLink   --> HTTP service, with signed requests
    queue or stream --> ToKafkaLink   --> Kafka topic
    Kafka topic     --> FromKafkaLink --> exchange

The process is an ordinary AMQP client. It keeps no files: the position of a link is in the broker
(acknowledgements; the offset of a stream in a queue) or in Kafka (the offsets of a group).
docs/connectors.md is the guide for users.

Reading order:

    settings        the settings file
    backoff         the pauses between attempts
    progress        records which messages are finished
    message         a message of the broker, and its form in HTTP and Kafka
    key_template    keys of Kafka and of AMQP, made from a message
    status          state and counts of a link, shown at /metrics and /health
    amqp            the connection to the broker
    source          messages of a queue or a stream, and their acknowledgement
    link            a link: connects again after each error
    signing         signatures of Standard Webhooks
    addresses       the addresses to which a request may go
    http_target     requests to an HTTP service
    webhook_link    queue or stream --> HTTP
    kafka_clients   a producer and a consumer of Kafka, with their threads
    kafka_links     queue or stream --> Kafka, Kafka --> exchange
    service         all links and the HTTP port of a process
"""
