"""A deterministic simulation of the whole durable broker: one seed is one history of clients,
traffic, crashes and faults.

    schedule    what happens next, drawn from the seed          clients, amqp, mqtt     who publishes, consumes, comes and goes
    life        a broker from its start to its crash            ledger, definitions     what was promised to whom: the checks
    journal     the entries that should be on the disk          wrong                   designs known to be wrong, which are caught

Nothing waits and nothing runs beside it: the disk, the clock, the network and the writer's thread
are steps that the schedule takes when it likes. `python -m tests.store.simulation SEED` tells a
seed's story.
"""
