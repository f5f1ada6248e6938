"""Client identifiers and their owners: sessions stay with their user, rules reserve identifiers."""

from __future__ import annotations

from typing import Any

import pytest

from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.access.users import Users
from broker.store.memory import MemoryStore
from tests.clients import Guests, Mqtt, World, mqtt_publish
from tests.wire.mqtt5.client import Client5

ACCEPTED, REJECTED = b"\x20\x02\x00\x00", b"\x20\x02\x00\x02"
RESUMED = b"\x20\x02\x01\x00"


class Accounts(Guests):
    """An authenticator with stored users.

    A client without a user name gets the identity `anonymous`, as in a real server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.users = Users(MemoryStore())
        self.nameless = Identity("anonymous")
        self.nameless.anonymous = True

    def authenticate(self, credentials: Credentials, answer: Any) -> None:
        if credentials.user is None:
            answer(Verdict(self.nameless))
        else:
            super().authenticate(credentials, answer)

    def renew(self, identity: Identity) -> Identity | None:
        return self.nameless if identity.anonymous else super().renew(identity)

    def add(self, name: str, *rules: str) -> None:
        self.identities[name] = self.users.define(name, "", [])
        self.users.set_permission("/", name, ".*", ".*", ".*")
        self.users.set_rules("/", name, rules)

    def reserved_for(self, vhost: str, client_id: str) -> list[str]:
        return self.users.reservations.users(vhost, client_id)


class AccountsWorld(World):
    """A broker with the users ann and bob, and with a log."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts = self.guests = Accounts()
        self.broker.authenticator = self.accounts
        self.logged: list[tuple[str, dict[str, object]]] = []
        self.mqtt_front.log = lambda event, fields: self.logged.append((event, fields))
        for name in ("ann", "bob", "anonymous"):
            self.accounts.add(name)


def connect(world: World, client_id: str, user: str, clean: bool = False) -> Mqtt:
    return world.mqtt(client_id, clean=clean, user=f"{user}/guest" if user else "")


@pytest.fixture
def world() -> AccountsWorld:
    return AccountsWorld()


USERS = ("ann", "bob", "anonymous", "")


@pytest.mark.parametrize("owner", USERS)
@pytest.mark.parametrize("other", USERS)
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("connected", [False, True])
def test_a_session_stays_with_its_user(
    world: AccountsWorld, owner: str, other: str, clean: bool, connected: bool
) -> None:
    first = connect(world, "dev", owner)
    first.subscribe("t", 1)
    if not connected:
        first.send(b"\xe0\x00")
    world.mqtt("writer", user="ann/guest").send(mqtt_publish("t", b"mine", 1, 1))
    second = connect(world, "dev", other, clean)
    if owner == other:
        assert second.greeting[:4] == (ACCEPTED if clean else RESUMED)
        assert first.connection.finished
        assert [event for event, _ in world.logged] == ["session_taken_over"] * connected
        return
    assert second.greeting == REJECTED and second.connection.finished
    assert second.connection.reason == "identifier_taken"
    ((event, fields),) = world.logged
    assert event == "login_refused" and fields["user"] == (other or "anonymous")
    whose = f"user '{owner}'" if owner else "anonymous clients"
    assert whose in str(fields["note"]) and fields["client_id"] == "dev"
    # The owner keeps the session with its messages.
    if connected:
        assert not first.connection.finished and b"mine" in first.read()
    else:
        again = connect(world, "dev", owner)
        assert again.greeting[:4] == RESUMED and b"mine" in again.greeting + again.read()


def test_a_refusal_at_level_5_tells_no_name(world: AccountsWorld) -> None:
    connect(world, "dev", "ann")
    client = Client5(world, "dev", username="bob", password=b"guest")
    assert int(client.connack.reason_code) == 0x85
    assert b"ann" not in client.greeting


def test_an_identifier_is_free_after_the_session_was_deleted(world: AccountsWorld) -> None:
    squatter = world.mqtt("dev", clean=False, user="bob/guest", will=("gone", b"will"))
    reader = connect(world, "reader", "ann")
    reader.subscribe("gone", 0)
    assert connect(world, "dev", "ann").greeting == REJECTED
    front = world.mqtt_front
    assert not front.delete_session(world.vhost, "other", None)
    assert front.delete_session(world.vhost, "dev", None)
    world.turn()
    assert squatter.connection.finished and b"will" not in reader.read()
    assert connect(world, "dev", "ann").greeting == ACCEPTED
    assert connect(world, "dev", "bob").greeting == REJECTED


# -- reservations


def test_a_reserved_identifier_is_for_its_user_alone(world: AccountsWorld) -> None:
    world.accounts.add("ann", "reserve client dev7", "reserve client {username}-*")
    for client_id in ("dev7", "ann-1", "ann-"):
        for other in ("bob", ""):
            assert connect(world, client_id, other).greeting == REJECTED
        assert connect(world, client_id, "ann").greeting == ACCEPTED
    for client_id in ("dev70", "dev", "ann", "bob-1"):
        assert connect(world, client_id, "bob").greeting == ACCEPTED
    assert "is reserved for user 'ann'" in str(world.logged[0][1]["note"])


def test_a_device_gets_its_identifier_from_a_squatter(world: AccountsWorld) -> None:
    squatter = connect(world, "dev7", "bob")
    squatter.subscribe("t", 1)
    assert connect(world, "dev7", "ann").greeting == REJECTED
    world.accounts.add("ann", "reserve client dev7")
    device = connect(world, "dev7", "ann")
    assert device.greeting == ACCEPTED, "the squatter's session is not handed over"
    assert squatter.connection.finished
    (taken, _), (event, fields) = world.logged[-1:-3:-1]
    assert taken == "session_taken_over"
    assert (event, fields["user"]) == ("session_ended", "bob")
    assert "user 'ann'" in str(fields["note"])
    assert connect(world, "dev7", "bob").greeting == REJECTED


@pytest.mark.parametrize("squats", [False, True])
def test_the_most_specific_rule_about_an_identifier_decides(
    world: AccountsWorld, squats: bool
) -> None:
    world.accounts.add("dev", "reserve client {username}-*")
    if squats:
        assert connect(world, "dev-a-1", "dev").greeting == ACCEPTED
    world.accounts.add("dev-a", "reserve client {username}-*")
    assert connect(world, "dev-a-1", "dev").greeting == REJECTED
    assert connect(world, "dev-a-1", "dev-a").greeting == ACCEPTED
    assert connect(world, "dev-b", "dev").greeting == ACCEPTED
    assert connect(world, "dev-b", "dev-a").greeting == REJECTED
    world.accounts.add("ann", "reserve client dev-a-1")
    assert connect(world, "dev-a-1", "dev-a").greeting == REJECTED
    assert connect(world, "dev-a-1", "ann").greeting == ACCEPTED


def test_rules_about_identifiers_restrict_no_topics(world: AccountsWorld) -> None:
    world.accounts.add("ann", "reserve client dev7")
    client = connect(world, "dev7", "ann")
    assert client.subscribe("any/topic", 0)[-1] == 0


def test_reservations_end_with_the_rule_the_permission_and_the_user(world: AccountsWorld) -> None:
    users = world.accounts.users
    for end in (
        lambda: users.set_rules("/", "ann", []),
        lambda: users.remove_permission("/", "ann"),
        lambda: users.remove("ann"),
        lambda: users.remove_vhost("/"),
    ):
        world.accounts.add("ann", "reserve client dev7", "reserve client x*")
        world.accounts.add("bob")
        assert users.reservations.users("/", "dev7") == ["ann"]
        assert users.reservations.users("/", "xy") == ["ann"]
        end()
        assert users.reservations.users("/", "dev7") == []
        assert users.reservations.users("/", "xy") == []


@pytest.mark.parametrize(
    "rule",
    [
        "reserve",
        "reserve client",
        "reserve client *",
        "reserve topic x",
        "reserve client " + 256 * "x",
    ],
)
def test_other_reservations_are_refused(world: AccountsWorld, rule: str) -> None:
    with pytest.raises(Exception, match="not a rule such as 'reserve client"):
        world.accounts.add("ann", rule)


def test_a_user_named_like_a_variable_reserves_its_own_name(world: AccountsWorld) -> None:
    world.accounts.add("{vhost}*", "reserve client {username}-{vhost}")
    assert world.accounts.reserved_for("/", "{vhost}*-/") == ["{vhost}*"]
    assert world.accounts.reserved_for("/", "/-/") == []


def test_an_authenticator_without_rules_reserves_nothing() -> None:
    assert Authenticator().reserved_for("/", "dev") == []
