"""A deterministic simulation of a whole durable broker.

Each seed gives one sequence of clients' actions, traffic, crashes and faults.

    schedule       the next step, drawn from the seed
    life           a broker from its start to its crash
    clients, amqp, mqtt, streams    clients that publish, consume, connect and disconnect
    ledger, definitions             models of what was confirmed, which check the broker
    journal        a model of the entries on the disk
    wrong          wrong designs, which the checks must catch

All work runs in one thread. The disk, the clock, the network and the writer's thread are steps that
the schedule takes in random order. `python -m tests.store.simulation SEED` prints
all steps of the sequence of SEED.
"""
