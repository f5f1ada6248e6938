"""Random logs: claims of several nodes, and records of owners, old owners and losers."""

from __future__ import annotations

from random import Random

from broker.replication.records import (
    BATCH,
    BEAT,
    CALL,
    CLAIM,
    MARK,
    BatchChunk,
    Claim,
    ClusterState,
    LogRecord,
    Mark,
)

NAME = "broker"


def random_log(seed: int) -> tuple[ClusterState, list[tuple[int, LogRecord]]]:
    """Return a state and the records behind it. Some logs begin late, and some have a gap."""
    chance = Random(seed)
    nonces = {epoch: [chance.getrandbits(64) for _ in range(3)] for epoch in range(1, 80)}
    #: The epoch in force, its writer, and the last offset that counts.
    epoch, owner, last = 0, 0, -1
    records: list[tuple[int, LogRecord]] = []
    for offset in range(chance.randrange(5, 60)):
        drawn = chance.random()
        wall = chance.randrange(10_000)
        if epoch == 0 or drawn < 0.15:
            wanted = epoch + (chance.choice((0, -1, 2)) if chance.random() < 0.1 else 1)
            writer = chance.randrange(3)
            seen = offset - 1 - chance.choice((0, 0, 0, 0, 1, 2, 5))
            name = NAME if chance.random() < 0.995 else "another"
            nonce = nonces[max(1, wanted)][writer]
            state = ClusterState(name, epoch, salt=chance.getrandbits(32))
            records.append(
                (offset, Claim(CLAIM, max(1, wanted), nonce, wall, seen, state, bytes(32)))
            )
            if wanted == epoch + 1 and seen >= last and name == NAME:
                epoch, owner, last = wanted, writer, offset
        elif drawn < 0.2:
            records.append((offset, LogRecord(CALL, chance.randrange(12), 7, wall)))
        else:
            of = max(1, epoch - (chance.random() < 0.1) + (chance.random() < 0.01))
            writer = owner if chance.random() < 0.95 else chance.randrange(3)
            nonce = nonces[of][writer]
            if (of, writer) == (epoch, owner):
                last = offset
            kind = chance.choice((BATCH, BATCH, BEAT, MARK))
            if kind == BATCH:
                chunk = BatchChunk(BATCH, of, nonce, wall, offset, 0, 1, 0, -1, offset, b"x")
                records.append((offset, chunk))
            elif kind == MARK:
                mark = ClusterState(NAME, of, nonce, offset - 1)
                records.append((offset, Mark(MARK, of, nonce, wall, mark)))
            else:
                records.append((offset, LogRecord(BEAT, of, nonce, wall)))
    return ClusterState(NAME), records


def begun_late(
    chance: Random, states: list[ClusterState], records: list[tuple[int, LogRecord]]
) -> tuple[ClusterState, list[tuple[int, LogRecord]]]:
    """Return a later beginning of a log: at a stored state, or with records cut out behind it.

    `states` has the state before each record, and after the last one.
    """
    at = chance.randrange(len(records))
    skipped = chance.choice((0, 0, 1, 3, 10))
    return states[at], records[at + skipped :]
