"""Tests of logins with passwords: verdicts, number of computed hashes, and caching."""

from __future__ import annotations

import asyncio
import base64
import itertools
import threading

import argon2
import pytest

from broker.access.identity import Identity
from broker.access.roles import RoleGrant
from broker.access.users import Users
from broker.broker import Broker
from broker.store.memory import MemoryStore
from tests.mosquitto.hashes import mosquitto_hash
from tests.password_hashes import CHEAP
from tests.top.clocks import JumpingLoop
from tests.top.password_logins import QUICK, Make, Question
from tests.top.running import PATIENCE
from tests.top.test_definitions import rabbit_hash
from trellis.auth.account import Account
from trellis.auth.authenticate import Accounts
from trellis.auth.passwords import HASHER, check_hash, decoy_hash, verify
from trellis.auth.private_files import scram_secret


async def test_the_right_password_and_no_other_is_accepted(accounts: Make) -> None:
    them = accounts()
    assert await Question(them, "quick", "quick").name() == "quick"
    for user, password in (
        ("quick", "wrong"),
        ("quick", ""),
        ("unknown", "quick"),
        ("", ""),
        ("quick\0", "quick"),
    ):
        verdict = await Question(them, user, password).verdict()
        assert (verdict.identity, verdict.reason, verdict.busy) == (
            None,
            "unknown user or wrong password",
            False,
        )


async def test_the_details_of_a_refusal_are_for_the_log(accounts: Make) -> None:
    """The client gets one reason for all refusals; the log distinguishes them."""
    them = accounts()
    for user, password, details in (
        ("quick", "se cret", "the password is wrong"),
        ('no"body\n', "se cret", "no user is named 'no\"body\n'"),
    ):
        verdict = await Question(them, user, password, local=False).verdict()
        assert (verdict.reason, verdict.details) == ("unknown user or wrong password", details)


async def test_no_verdict_comes_before_its_hash_and_none_twice(accounts: Make) -> None:
    question = Question(accounts(), "quick", "quick")
    assert not question.answered
    await question.verdict()
    await asyncio.sleep(0)
    assert len(question.verdicts) == 1


async def test_equal_credentials_that_are_being_checked_are_hashed_once(accounts: Make) -> None:
    them = accounts()
    questions = [Question(them, "quick", "quick") for _ in range(100)]
    assert {await question.name() for question in questions} == {"quick"}
    assert them.passwords_hashed == 1
    wrong = [Question(them, "quick", "wrong") for _ in range(100)]
    assert {await question.name() for question in wrong} == {None}
    assert them.passwords_hashed == 2


async def test_many_logins_that_wait_for_one_verdict_are_answered_in_several_turns(
    accounts: Make,
) -> None:
    them = accounts()
    Question.answers = 0
    questions = [Question(them, "quick", "quick") for _ in range(1_000)]
    await questions[0].verdict()
    counts = [Question.answers]
    while counts[-1] < len(questions):
        await asyncio.sleep(0)
        counts.append(Question.answers)
    assert max(later - sooner for sooner, later in itertools.pairwise(counts)) <= 20


async def test_many_logins_that_waited_too_long_are_answered_in_several_turns(
    monkeypatch: pytest.MonkeyPatch, accounts: Make
) -> None:
    monkeypatch.setattr("trellis.auth.authenticate.LINE_SECONDS", 0.0)
    them = accounts(queue=1_000)
    Question.answers = 0
    questions = [Question(them, "quick", f"{number}", False) for number in range(1_000)]
    counts = [0]
    while counts[-1] < len(questions):
        await asyncio.sleep(0)
        counts.append(Question.answers)
    assert max(later - sooner for sooner, later in itertools.pairwise(counts)) <= 30
    assert sum(question.verdicts[0].busy for question in questions) >= 990
    assert them.waiting == 0 and them._lines == {}


async def test_verified_credentials_are_remembered_and_wrong_ones_are_not(accounts: Make) -> None:
    them = accounts()
    await Question(them, "quick", "quick").verdict()
    again = Question(them, "quick", "quick")
    assert again.answered
    assert await again.name() == "quick"
    assert them.passwords_hashed == 1
    for _ in range(2):
        wrong = Question(them, "quick", "wrong")
        assert not wrong.answered
        assert await wrong.name() is None
    assert them.passwords_hashed == 3


def test_memory_ends() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        for remember, expected in ((0.0, [1, 2, 3]), (300.0, [1, 1, 2])):
            users = [Account(Identity("quick"), QUICK, False)]
            them = Accounts(users, None, False, 1, 10, remember, scram_secret(None))
            hashed = []
            for seconds in (0, 200, 101):
                loop.ahead += seconds
                await Question(them, "quick", "quick").verdict()
                hashed.append(them.passwords_hashed)
            them.close()
            assert hashed == expected

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())


async def test_cache_of_logins_holds_neither_password_nor_hash(accounts: Make) -> None:
    them = accounts()
    await Question(them, "quick", "quick").verdict()
    (mark,) = them._remembered.by_digest
    assert b"quick" not in mark
    assert len(mark) == 32
    other = accounts()
    await Question(other, "quick", "quick").verdict()
    # Each Accounts has a random key of its own for the hashes of verified logins.
    assert mark not in other._remembered.by_digest


async def test_unknown_names_are_hashed_like_wrong_passwords(accounts: Make) -> None:
    them = accounts()
    for hashed, user in enumerate(("unknown", "quick", "unknown", "quick"), 1):
        question = Question(them, user, "wrong")
        assert not question.answered
        assert (await question.verdict()).reason == "unknown user or wrong password"
        assert them.passwords_hashed == hashed


async def test_full_login_queue_asks_further_clients_to_try_again(accounts: Make) -> None:
    them = accounts(queue=2)
    slow, next_one = Question(them, "slow", "slow"), Question(them, "quick", "quick")
    third, same = Question(them, "here", "quick"), Question(them, "slow", "slow")
    verdict = await third.verdict()
    assert (verdict.identity, verdict.busy) == (None, True)
    assert [await question.name() for question in (slow, next_one, same)] == [
        "slow",
        "quick",
        "slow",
    ]
    assert await Question(them, "here", "quick").name() == "here"


async def test_a_full_queue_accepts_verified_credentials(accounts: Make) -> None:
    them = accounts(queue=1)
    await Question(them, "quick", "quick").verdict()
    waiting = Question(them, "slow", "slow")
    assert await Question(them, "quick", "quick").name() == "quick"
    await waiting.verdict()


async def test_some_users_come_from_loopback_only(accounts: Make) -> None:
    them = accounts()
    assert await Question(them, "here", "quick", local=True).name() == "here"
    verdict = await Question(them, "here", "quick", local=False).verdict()
    assert (verdict.identity, verdict.reason) == (None, "unknown user or wrong password")
    assert await Question(them, "quick", "quick", local=False).name() == "quick"


@pytest.mark.parametrize(
    ("anonymous", "from_afar", "local", "name"),
    [
        (True, False, True, "anonymous"),
        (True, False, False, None),
        (True, True, False, "anonymous"),
        (False, False, True, None),
    ],
)
async def test_login_without_a_name(
    accounts: Make, anonymous: bool, from_afar: bool, local: bool, name: str | None
) -> None:
    question = Question(accounts(anonymous, from_afar), None, local=local)
    assert question.answered  # The verdict comes at once, because no password is hashed.
    assert await question.name() == name


async def test_waiting_logins_are_dropped_when_the_authenticator_closes(accounts: Make) -> None:
    them = accounts()
    questions = [Question(them, "slow", f"{number}") for number in range(5)]
    them.close()
    await asyncio.sleep(0)
    assert not any(question.answered for question in questions)


class BusyPool:
    """Keeps the only hashing thread of an authenticator busy until `end` is called."""

    def __init__(self, accounts: Accounts) -> None:
        self._released = threading.Event()
        accounts._pool.submit(self._released.wait, PATIENCE)

    def end(self) -> None:
        self._released.set()


async def test_a_user_that_is_deleted_during_its_login_is_refused(accounts: Make) -> None:
    them = accounts()
    them.users = users = Users(MemoryStore())
    users.define_role("staff", {"/": RoleGrant((".*", ".*", ".*"), ())})
    users.define("ann", QUICK, [], role="staff")
    pool = BusyPool(them)
    question = Question(them, "ann", "quick")
    users.remove("ann")
    pool.end()
    verdict = await question.verdict()
    assert (verdict.identity, verdict.details) == (None, "no user is named 'ann'")


async def test_a_login_gets_the_permissions_that_the_user_has_at_its_end(accounts: Make) -> None:
    them = accounts()
    them.users = users = Users(MemoryStore())
    for name in ("staff", "guests"):
        users.define_role(name, {"/": RoleGrant((name, name, name), ())})
    users.define("ann", QUICK, [], role="staff")
    pool = BusyPool(them)
    question = Question(them, "ann", "quick")
    users.define("ann", QUICK, [], role="guests")
    pool.end()
    identity = (await question.verdict()).identity
    assert identity is users.by_name["ann"]
    permissions = identity.for_vhost("/")
    assert permissions is not None
    assert permissions.allows("read", "queue", "guests", "/")
    assert not permissions.allows("read", "queue", "staff", "/")


@pytest.mark.parametrize("password", ["quick", "new"])
async def test_a_password_that_changes_during_a_login_is_checked_again(
    accounts: Make, password: str
) -> None:
    them = accounts()
    changed = Account(Identity("quick"), argon2.PasswordHasher(1, 8, 1).hash(password), False)
    pool = BusyPool(them)
    question = Question(them, "quick", "quick")
    them.replace([changed], None, False)
    pool.end()
    expected = changed.identity if password == "quick" else None
    assert (await question.verdict()).identity is expected
    assert them.passwords_hashed == 2 and them.waiting == 0


@pytest.mark.parametrize(
    ("name", "password", "local"),
    [
        ("quick", "wrong", True),
        ("unknown", "wrong", True),
        ("here", "quick", False),
        ("imported", "wrong", True),
        ("without", "", True),
    ],
)
async def test_an_unknown_name_is_as_much_work_as_a_wrong_password(
    monkeypatch: pytest.MonkeyPatch, accounts: Make, name: str, password: str, local: bool
) -> None:
    """An unknown name and a wrong password must take equal time, so that no name can be guessed.

    The test counts argon2id hashes instead of time: each failed login costs one hash.
    """
    hashed: list[str] = []

    def count(password_hash: str, password: bytes) -> bool:
        hashed.append(password_hash)
        return verify(password_hash, password)

    monkeypatch.setattr("trellis.auth.authenticate.verify", count)
    them = accounts()
    them.users = Broker(MemoryStore(), them, str).users
    them.users.define(
        "imported", check_hash(base64.b64encode(b"salt" + bytes(32)).decode(), ""), []
    )
    them.users.define("without", "", [])
    verdict = await Question(them, name, password, local).verdict()
    assert (verdict.identity, verdict.reason) == (None, "unknown user or wrong password")
    assert sum(one.startswith("$argon2") for one in hashed) == 1
    assert them.passwords_hashed == 1


@pytest.mark.parametrize(
    ("of_settings", "stored", "owners"),
    [
        ("dev-*", "dev-a-*", ["stored"]),
        ("dev-a-*", "dev-*", ["settings"]),
        ("dev-a-1", "dev-a-1*", ["settings"]),
        ("dev-a-*", "dev-a-*", ["settings", "stored"]),
        ("x", "y", []),
    ],
)
def test_reservations_of_the_settings_and_stored_ones_are_compared(
    of_settings: str, stored: str, owners: list[str]
) -> None:
    rules = {"/": [f"reserve client {of_settings}"]}
    account = Account(Identity("settings"), QUICK, False, rules)
    accounts = Accounts([account], None, False, 1, 1024, 300.0, scram_secret(None))
    accounts.users = Users(MemoryStore())
    accounts.users.define("stored", "", [])
    accounts.users.set_permission("/", "stored", ".*", ".*", ".*")
    accounts.users.set_rules("/", "stored", [f"reserve client {stored}"])
    assert accounts.reserved_for("/", "dev-a-1") == owners


def test_no_imported_hash_admits_an_empty_password() -> None:
    for password in (b"", b"word"):
        for stored in (
            rabbit_hash(password),
            mosquitto_hash(password, b"salt", 0),
            mosquitto_hash(password, b"salt", 1),
            CHEAP.hash(password),
        ):
            assert verify(check_hash(stored, ""), password) == bool(password), stored


def test_the_decoy_for_unknown_users_costs_as_much_as_a_new_hash_and_has_no_password() -> None:
    decoy_hash.cache_clear()
    decoy, password_hash = decoy_hash(), HASHER.hash("a word")
    assert argon2.extract_parameters(decoy) == argon2.extract_parameters(password_hash)
    assert len(decoy) == len(password_hash)
    assert not verify(decoy, b"") and not verify(decoy, b"a word")
