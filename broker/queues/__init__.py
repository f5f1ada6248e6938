"""Queues: order of delivery, limits, priorities, delays, consumers, arguments, policies.

Reading order:

    destination   the base class of queues, exchanges and subscribers
    consumer      consumers, and the choice of the consumer that gets the next message
    statistics    the counts of publications and deliveries of a queue
    fifo          the buffer of a queue's messages
    paged_tail    the messages of a long queue that are on disk only
    returned      the messages that consumers returned to a queue
    waiting       the waiting messages of a queue: returned, in memory, and on disk
    delivery_gate  which messages of a durable queue may be delivered now
    queue         the plain queue: delivery, requeue, settlement, purge
    arguments     the arguments of a queue, and their permitted values
    policies      arguments for all queues and exchanges with a matching name
    limited       the queue with arguments: time to live, limits, dead letters
    retries       returned messages that wait before their next delivery
    deduplicated  the queue that deduplicates its messages
    heap          queues that order messages by a rank: the base of the next two
    priority      the queue of x-max-priority: higher priorities first
    pausing       deliveries of a queue that an operator pauses and resumes
    peeking       reads the waiting messages of a queue without taking them
    delay         the queue of delayed messages (x-delay): earlier times first
"""
