"""The replicated log of a broker on a Kafka cluster, over the client library confluent-kafka.

Only this package imports confluent-kafka, and the broker imports this package only if the section
[cluster] names Kafka servers. Reading order:

    clock            the clock of lease and silence
    following        a standby: the thread that follows the log, and claims it
    ownership        the owner: ships batches, and ends the process when it is fenced
"""
