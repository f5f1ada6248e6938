"""Tests of logins with passwords: verdicts, number of computed hashes, and caching."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import argon2
import pytest
import pytest_asyncio

from broker.access.identity import Credentials, Identity, Verdict
from broker.access.roles import RoleGrant
from broker.access.users import Users
from broker.broker import Broker
from broker.store.memory import MemoryStore
from tests.top.clocks import JumpingLoop
from tests.top.conftest import Start
from tests.top.running import PATIENCE, Mqtt0, Running, settings
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
from trellis.auth.passwords import HASHER, check_hash, decoy_hash, verify
from trellis.auth.private_files import scram_secret
from trellis.auth.settings_users import GENERATED_USER_FILE, authenticator_from_settings
from trellis.settings import SettingsError, load

#: A password hash that is verified very fast, and one that is verified slowly.
QUICK = argon2.PasswordHasher(1, 8, 1).hash("quick")
SLOW = (
    "$argon2id$v=19$m=32768,t=8,p=1"
    "$1fMGcVnNnuIyNHzpZsPLXw$gPXeam4tcTr4WePqhJysI6Kt3gAIMRUw3wKdY7GQQBw"
)

Make = Callable[..., Accounts]


@pytest_asyncio.fixture
async def accounts() -> AsyncIterator[Make]:
    """Yield a function that makes Accounts of the users `quick`, `slow` and `here`.

    The passwords of `quick` and `slow` are their names. `here` has the password of `quick`, and may
    log in from loopback only.
    """
    opened: list[Accounts] = []

    def make(
        anonymous: bool = True, from_afar: bool = False, queue: int = 10, remember: float = 300.0
    ) -> Accounts:
        users = [
            Account(Identity("quick"), QUICK, False),
            Account(Identity("slow"), SLOW, False),
            Account(Identity("here"), QUICK, True),
        ]
        opened.append(
            Accounts(
                users,
                Identity("anonymous") if anonymous else None,
                from_afar,
                1,
                queue,
                remember,
                scram_secret(None),
            )
        )
        return opened[-1]

    yield make
    for one in opened:
        one.close()


class Question:
    """Credentials that wait for a verdict."""

    #: Number of questions with a verdict; a test sets it to 0.
    answers: ClassVar[int] = 0

    def __init__(
        self,
        accounts: Accounts,
        user: str | None,
        password: str = "",
        local: bool = True,
        address: str = "192.0.2.1",
    ) -> None:
        self.verdicts: list[Verdict] = []
        self._heard = asyncio.Event()
        address = "127.0.0.1" if local else address
        accounts.authenticate(Credentials(user, password.encode(), "/", address, local), self._hear)

    def _hear(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        Question.answers += 1
        self._heard.set()

    @property
    def answered(self) -> bool:
        return bool(self.verdicts)

    async def verdict(self) -> Verdict:
        async with asyncio.timeout(PATIENCE):
            await self._heard.wait()
        (verdict,) = self.verdicts
        return verdict

    async def name(self) -> str | None:
        """Return the name of the identity in the verdict, or None if the login is refused."""
        identity = (await self.verdict()).identity
        return None if identity is None else identity.name


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


async def test_memory_ends(accounts: Make) -> None:
    them = accounts(remember=0.0)
    for hashed in (1, 2):
        await Question(them, "quick", "quick").verdict()
        assert them.passwords_hashed == hashed
    them = accounts(remember=0.05)
    await Question(them, "quick", "quick").verdict()
    await asyncio.sleep(0.06)
    await Question(them, "quick", "quick").verdict()
    assert them.passwords_hashed == 2


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


# -- over sockets


async def test_full_queues_are_told_in_the_words_of_the_protocol(start: Start) -> None:
    running = await start(auth={"threads": 1, "queue": 1})
    # The only hashing thread waits for this event, so it hashes no password before.
    release = threading.Event()
    running.node.accounts._pool.submit(release.wait, PATIENCE)
    first = Mqtt0(await running.socket("mqtt"))
    asking = asyncio.create_task(first.connect("first", user="known/known"))
    await running.until(lambda: running.node.accounts.waiting == 1)
    assert (await running.scrape()).value("trellis_logins_waiting") == 1
    # return code 3: server unavailable
    assert await Mqtt0(await running.socket("mqtt")).connect("second", user="known/wrong") == 3
    status, _ = await running.get(
        "http", "/api/trellis/queues", "Authorization: Basic a25vd246d3Jvbmc=\r\n"
    )
    assert status == 503
    release.set()
    assert await asking == 0
    page = await running.scrape()
    for outcome, count in (("accepted", 1), ("refused", 0), ("busy", 1)):
        assert page.value("trellis_logins_total", protocol="mqtt", outcome=outcome) == count
    assert page.value("rabbitmq_auth_attempts_failed_total", protocol="mqtt") == 1
    assert page.value("trellis_passwords_hashed_total") == 1


@pytest.mark.parametrize(("anonymous", "code"), [("loopback", 0), ("true", 0), ("false", 5)])
async def test_anonymous_clients_of_mqtt(start: Start, anonymous: str, code: int) -> None:
    running = await start(mqtt={"anonymous": anonymous})
    assert await Mqtt0(await running.socket("mqtt")).connect("unknown") == code


async def test_rules_restrict_anonymous_clients_and_are_read_again(start: Start) -> None:
    rules = ["allow all own/{client_id}/#", "allow subscribe news"]
    running = await start(mqtt={"port": 0, "anonymous_rules": rules})
    watcher = await running.mqtt("watcher", user="known/known")
    await watcher.subscribe("#")
    client = await running.mqtt("dev1")
    for topic, good in (("own/dev1/x", True), ("own/dev2/x", False), ("news", False)):
        name = topic.encode()
        await client.socket.send(bytes([0x30, len(name) + 2, 0, len(name)]) + name)
        await client.ping()
        if good:
            assert (await watcher.packet())[1][2:] == name
        await watcher.ping()
    await client.subscribe("news")
    await running.reload(settings(mqtt={"port": 0, "anonymous_rules": ["deny all #"]}))
    await running.until(lambda: len(running.links) == 1)


def test_too_many_rules_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"mqtt.anonymous_rules = {json.dumps(['allow all #'] * 201)}")
    with pytest.raises(SettingsError, match=r"mqtt.anonymous_rules: has 201 rules; the limit is"):
        load([file], {})


async def test_a_generated_user_is_told_once_and_kept(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen: dict[str, Any] = {"data": {"dir": str(tmp_path)}, "users": []}
    with caplog.at_level(logging.WARNING):
        running = await start(**chosen)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "generated_password" in record.getMessage()
    ]
    password = re.search(r"user=trellis password=(\S+) ", line)
    assert password is not None
    file = tmp_path / GENERATED_USER_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert [name for name in os.listdir(tmp_path) if name.startswith("generated")] == [
        GENERATED_USER_FILE
    ]
    assert password[1] not in file.read_text()
    assert await log_in(running, password[1]) == 0
    assert await log_in(running, "wrong") == 4
    await running.stop()

    caplog.clear()
    again = await start(**chosen)
    assert "generated_password" not in caplog.text
    assert await log_in(again, password[1]) == 0


async def log_in(running: Running, password: str) -> int:
    client = Mqtt0(await running.socket("mqtt"))
    code = await client.connect("generated", user=f"trellis/{password}")
    client.socket.close()
    return code


def test_a_kept_hash_of_another_name_is_replaced(tmp_path: Path) -> None:
    for name in ("one", "two"):
        authenticator_from_settings(settings(user=name), tmp_path).close()
        assert json.loads((tmp_path / GENERATED_USER_FILE).read_text())["name"] == name


# -- guessing


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
    """Return how many passwords a client with `parallel` connections can guess in `seconds`."""

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


def test_the_decoy_for_unknown_users_costs_as_much_as_a_new_hash_and_has_no_password() -> None:
    decoy_hash.cache_clear()
    decoy, password_hash = decoy_hash(), HASHER.hash("a word")
    assert argon2.extract_parameters(decoy) == argon2.extract_parameters(password_hash)
    assert len(decoy) == len(password_hash)
    assert not verify(decoy, b"") and not verify(decoy, b"a word")
