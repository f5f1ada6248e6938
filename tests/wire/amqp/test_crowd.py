"""Compares the broker with the model while fifty consumers reject, requeue, close and disconnect.

model.py defines the steps and the model. In test_model.py, hypothesis draws the steps. Here a
seeded generator draws many more steps, each kind of step with a weight.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.wire.amqp.model import KEYS, PATTERNS, QUEUES, Play

CONNECTIONS = 10
CONSUMERS = 50
STEPS = {
    "publish": 30,
    "settle": 40,
    "consume": 70,
    "later": 5,
    "time": 6,
    "get": 5,
    "cancel": 3,
    "bind": 4,
    "recover": 2,
    "select": 1,
    "commit": 6,
    "rollback": 1,
    "close": 1.5,
    "break": 1.5,
    "lose": 2,
    "declare": 3,
    "delete": 0.5,
    "purge": 1,
}


class Crowd(Play):
    """A broker, its model, and steps in which clients with many consumers act at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.begin(CONNECTIONS, CONSUMERS // CONNECTIONS)
        #: Highest number of consumers so far.
        self.most = 0
        for name in QUEUES:
            self.declare(0, name)
            self.bind_or_unbind(0, name, "k.#", True, False)
            self.bind_or_unbind(0, name, "#", True, True)

    def step(self) -> None:
        random = self.random
        who, name = random.randrange(CONNECTIONS), random.choice(QUEUES)
        match random.choices(list(STEPS), list(STEPS.values()))[0]:
            case "publish":
                self.publish(
                    who,
                    random.choice(KEYS),
                    random.randint(1, 6),
                    random.choice([None, name]),
                    random.randrange(60),
                    self.keys(),
                    self.keys(),
                    random.randrange(5),
                )
            case "later":
                self.publish(
                    who,
                    random.choice(KEYS),
                    1,
                    None,
                    0,
                    None,
                    self.keys(),
                    random.randrange(5),
                    random.randint(1, 40),
                )
            case "settle":
                self.settle(
                    who,
                    random.randrange(30),
                    random.random() < 0.3,
                    random.choice(["ack", "ack", "drop", "requeue"]),
                )
            case "consume":
                self.consume(
                    who,
                    name,
                    random.choice([0, 1, 1, 2, 3]),
                    random.random() < 0.1,
                    random.choice([-1, 0, 0, 1]),
                )
            case "time":
                self.pass_time(random.randint(1, 20))
            case "get":
                self.get(who, name, random.random() < 0.3)
            case "cancel":
                self.cancel(who, random.randrange(5))
            case "bind":
                self.bind_or_unbind(
                    who, name, random.choice(PATTERNS), random.random() < 0.7, random.random() < 0.3
                )
            case "recover":
                self.recover(who)
            case "select":
                self.select(who)
            case "commit":
                self.commit(who)
            case "rollback":
                self.rollback(who)
            case "close":
                self.close_channel(who)
            case "break":
                self.break_channel(who)
            case "lose":
                self.lose_connection(who)
            case "declare":
                self.declare(who, random.choice(QUEUES))
            case "delete":
                self.delete(who, name)
            case "purge":
                self.purge(who, name)
        self.most = max(self.most, sum(len(side.consumers) for side in self.sides))

    def keys(self) -> list[str] | None:
        return self.random.choice([None, None, None, self.random.sample(KEYS + QUEUES, 2)])


def play(seed: int, steps: int) -> Crowd:
    crowd = Crowd(seed)
    for _ in range(steps):
        crowd.step()
        crowd.compare()
    return crowd


@pytest.mark.parametrize("seed", range(4))
def test_a_crowd_gets_everything_in_order(seed: int) -> None:
    crowd = play(seed, 400)
    tally = crowd.world.amqp_front.tally
    assert crowd.most >= 0.7 * CONSUMERS and tally.delivered_manual > 300 and tally.redelivered > 30
    assert crowd.world.copies()["dead_lettered"] > 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
def test_many_crowds_get_everything_in_order(seed: int) -> None:
    play(seed, 1_500)
