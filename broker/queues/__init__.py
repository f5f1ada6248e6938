"""Queues: order of delivery, limits, priorities, delays, consumers, arguments, policies.

Reading order:

    destination       the base class of queues, exchanges and subscribers
    slices            the largest amounts of work that a queue does in one turn
    consumer          consumers, and the choice of the consumer that gets the next message
    statistics        the counts of publications and deliveries of a queue
    fifo              the buffer of a queue's messages
    paged_tail        the messages of a long queue that are on disk only
    returned          the messages that consumers returned to a queue
    arrivals          the arrival times of the waiting messages
    waiting           the waiting messages of a queue: returned, in memory, and on disk
    delivery_gate     which messages of a durable queue may be delivered now
    delivery_window   the delivery marks by which the gate decides
    upkeep            the timers and the bulk work of a queue
    emptying          tasks that empty a purged or deleted queue
    queue             the plain queue: delivery, requeue, settlement, purge
    arguments         the arguments of a queue, and their permitted values
    policies          arguments for all queues and exchanges with a matching name
    measured          a queue that adds up the sizes of its waiting messages
    limited           the queue with arguments: time to live, limits, dead letters
    recount           adds up the sizes of the waiting bodies when a limit in bytes is set
    delivery_attempts how many times a message was requeued: the stored count, the header
    retries           returned messages that wait before their next delivery
    unused_expiry     the timer of x-expires, which deletes an unused queue
    replacing         replaces a queue by a queue of another class, because of a policy
    deduplicated      the queue that deduplicates its messages
    duplicate_filter  the header values that a deduplicating exchange remembers
    heap              queues that order messages by a rank: the base of priority and delay
    heap_search       the search for one message of a HeapQueue, in slices
    paged_heap        the messages of a long HeapQueue that are on disk only
    private           the queues that clients cannot declare, such as inboxes of MQTT sessions
    priority          the queue of x-max-priority: higher priorities first
    delay             the queue of delayed messages (x-delay): earlier times first
    recent            the queue with the recent messages of an x-recent-history exchange
    pausing           deliveries of a queue that an operator pauses and resumes
    peeking           reads the waiting messages of a queue without taking them
"""
