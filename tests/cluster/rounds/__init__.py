"""Rounds of faults on a cluster of two real node processes (`make test-ha`).

A round waits until one node is active and the other follows, causes one fault, and waits until the
cluster has recovered. Clients publish and consume meanwhile, and check every message.

    python -m tests.cluster.rounds [--rounds N] [--record FILE] [KIND...]

Reading order:

    node       the process of one node, with points at which the process stops itself
    world      two nodes over one log, and the log's own faults
    client     the clients that publish, consume and check
    exactly    a publisher and a subscriber with QoS 2
    kinds      the kinds of faults, such as kill-active
    run        rounds of one kind
    record     the figures of many runs in a JSON file, and their table
"""
