"""Diagnosis: finds the problems of a queue, a client or a topic that `trellis why` shows.

    findings.py    one problem: a name, a text, and the command to type next
    queues.py      a queue: no consumers, full prefetch, returned messages, limits, growth
    clients.py     a client: refused, throttled, slow, taken over, not connected
    topics.py      a topic: no subscription, a rule denies it, a queue drops it

The functions read the state of the broker and change nothing. They run in the event loop, and each
examines a bounded number of objects.
"""
