"""Rounds of faults on real processes, with a client that checks every message (`make test-ha`).

    python -m tests.cluster.rounds [--rounds N] [--record FILE] [KIND...]

Reading order:

    node       the process of one node, with points at which the process stops itself
    world      two nodes over one log, and the log's own faults
    client     the clients that publish, consume and check
    exactly    a publisher and a subscriber with QoS 2
    kinds      the kinds of faults
    run        rounds of one kind
    record     the figures of many runs, and their table
"""
