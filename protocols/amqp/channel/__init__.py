"""AMQP channels: publishing, consuming, confirms, transactions.

Reading order:

    connection_interface   the part of a connection that a channel uses
    consumer               writes messages of a queue as basic.deliver
    settlement             settling many deliveries with one method, in slices
    fetching               basic.get
    receiver               consumers of a channel, delivery tags, settlements
    reauthorization        checks consumers after a change of permissions, in slices
    streaming              consumers of streams
    confirms               publisher confirms, in the order of publishing
    publisher              publications that do not take the fast path
    transaction            publications and settlements until tx.commit
    commit                 tx.commit, prepared in slices
    channel                the channel: a publisher side and a receiver side
    exclusive_queues       the queues that end with the connection
"""
