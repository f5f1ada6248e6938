"""Tests of the login throttle: failed logins make guesses of passwords slow."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from broker.access.identity import Identity
from tests.top.clocks import JumpingLoop
from tests.top.password_logins import QUICK, Make, Question
from trellis.auth.account import Account
from trellis.auth.authenticate import Accounts
from trellis.auth.login_throttle import (
    ADDRESS_WAIT_MAX,
    FORGIVEN_SECONDS,
    MAX_KEYS,
    USER_WAIT_MAX,
    LoginFailures,
    LoginThrottle,
)
from trellis.auth.private_files import scram_secret


def test_the_first_failures_cost_nothing_and_the_next_ones_wait_longer_each() -> None:
    guessing = LoginThrottle()
    waits = []
    for _ in range(16):
        waits.append(guessing.wait("ann", "192.0.2.1", False, 100.0))
        guessing.on_failure("ann", "192.0.2.1", False, 100.0)
    assert waits[:5] == [0.0] * 5
    assert waits[5:9] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == ADDRESS_WAIT_MAX
    assert guessing.wait("bob", "192.0.2.1", False, 100.0) == ADDRESS_WAIT_MAX
    assert guessing.wait("ann", "192.0.2.2", False, 100.0) == USER_WAIT_MAX
    assert guessing.wait("bob", "192.0.2.2", False, 100.0) == 0.0
    assert guessing.wait("bob", "192.0.2.1", True, 100.0) == 0.0
    assert guessing.throttled == 11 + 2


def test_failures_are_forgiven_with_time_and_a_name_with_success() -> None:
    guessing = LoginThrottle()
    for _ in range(6):
        guessing.on_failure("ann", "192.0.2.1", False, 100.0)
    assert guessing.wait("ann", "192.0.2.9", False, 100.0 + FORGIVEN_SECONDS) == 0.1
    assert guessing.wait("ann", "192.0.2.9", False, 100.0 + 2 * FORGIVEN_SECONDS) == 0.0
    guessing.on_success("ann")
    assert guessing.wait("ann", "192.0.2.9", False, 100.0) == 0.0
    assert guessing.wait("bob", "192.0.2.1", False, 100.0) > 0


def test_guesses_with_many_names_use_bounded_memory() -> None:
    guessing = LoginThrottle()
    for number in range(MAX_KEYS + 500):
        guessing.on_failure(f"{number:05}" * 1_000, f"192.0.2.{number}", False, 100.0)
    assert (len(guessing.users), len(guessing.addresses)) == (MAX_KEYS, MAX_KEYS)
    assert max(map(len, guessing.users._failures)) == 255


async def test_failures_slow_down_guessing_clients_and_not_known_ones(accounts: Make) -> None:
    them = accounts()
    them.login_throttle.users = LoginFailures(0.001)
    assert await Question(them, "quick", "quick").name() == "quick"
    for number in range(8):
        assert (await Question(them, "quick", f"guess {number}").verdict()).identity is None
    assert them.login_throttle.throttled == 3
    assert await Question(them, "quick", "quick").name() == "quick"
    assert them.login_throttle.throttled == 3


def guesses_in(seconds: int, parallel: int, local: bool) -> int:
    """Return how many passwords a client with `parallel` connections can guess in `seconds`.

    `local` is True if the client connects from loopback.
    """

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        users = [Account(Identity("quick"), QUICK, False)]
        them = Accounts(users, None, False, 1, 1024, 300.0, scram_secret(None))
        numbers = itertools.count()
        guesses = [Question(them, "quick", f"{next(numbers)}", local) for _ in range(parallel)]
        for _ in range(seconds * 10):
            loop.ahead += 0.1
            for _ in range(20):
                await asyncio.sleep(0)
            for _ in range(5_000):
                if not them._checking:
                    break
                await asyncio.sleep(0.001)
            for at, one in enumerate(guesses):
                if one.answered:
                    guesses[at] = Question(them, "quick", f"{next(numbers)}", local)
        them.close()
        return them.passwords_hashed

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("local", [True, False])
def test_a_guesser_with_many_connections_is_no_faster_than_with_one(local: bool) -> None:
    serial = guesses_in(60, 1, local)
    assert serial > 10
    # The parallel guesser sends its first two logins at once, so it may get one check more.
    assert guesses_in(60, 50, local) <= serial + 1


async def test_a_guesser_does_not_keep_the_user_at_another_address_out(accounts: Make) -> None:
    them = accounts(queue=20)
    them.login_throttle.users = LoginFailures(0.001)
    guesses = [Question(them, "quick", f"{number}", False) for number in range(60)]
    guesses += [Question(them, f"name {number}", "x", False) for number in range(60)]
    assert them.waiting <= 2 * 20
    user = Question(them, "quick", "quick", False, "198.51.100.7")
    assert await user.name() == "quick"
    assert them.passwords_hashed <= 10
    # The refused logins are guesses, because the guesser's own queue of waiting logins is full.
    assert sum(one.answered and one.verdicts[0].busy for one in guesses) >= 120 - 2 * 20
    them.close()


async def test_devices_behind_one_address_that_know_their_passwords_do_not_wait(
    accounts: Make,
) -> None:
    them = accounts(queue=200)
    them._accounts |= {
        f"device {number}": Account(Identity(f"device {number}"), QUICK, False)
        for number in range(100)
    }
    logins = [Question(them, f"device {number}", "quick", False) for number in range(100)]
    assert [await one.name() for one in logins] == [f"device {number}" for number in range(100)]
    assert them.login_throttle.throttled == 0 and them.waiting == 0 and them._lines == {}


async def test_logins_above_the_limit_of_waiting_ones_are_told_to_try_again(accounts: Make) -> None:
    them = accounts(queue=1)
    for _ in range(20):
        them.login_throttle.on_failure(
            "quick", "127.0.0.1", True, asyncio.get_running_loop().time()
        )
    waits = Question(them, "quick", "a")
    verdict = await Question(them, "quick", "b").verdict()
    assert verdict.busy
    assert waits.verdicts == []
    them.close()
