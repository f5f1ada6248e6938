"""Roles: permissions and topic rules that many users share, stored and applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.access.identity import READ_ALL, READ_NONE, Identity
from broker.access.roles import RoleGrant, grants_of
from broker.access.users import User, Users
from broker.agenda import Agenda
from broker.broker import SLICE_PAUSE_MS
from broker.errors import PreconditionFailed
from broker.store.memory import MemoryStore
from protocols.front import Review
from tests.clients import World
from tests.store.homes import Home

DEVICES = {"/": RoleGrant(("^$", ".*", ".*"), ["allow all plant/{username}/#"])}


@pytest.fixture
def users() -> Users:
    return Users(MemoryStore())


def member(users: Users, name: str = "ann", role: str = "devices") -> User:
    return users.define(name, "", [], role=role)


def identity(user: User, vhost: str = "/") -> Identity:
    permissions = user.for_vhost(vhost)
    assert permissions is not None
    return permissions


def test_a_role_gives_its_users_permissions_and_rules_with_their_own_names(users: Users) -> None:
    users.define_role("devices", DEVICES)
    ann, bob = member(users), member(users, "bob")
    assert identity(ann).may_publish(b"plant/ann/x") and not identity(ann).may_publish(b"plant/b")
    assert identity(bob).may_publish(b"plant/bob/x")
    assert not identity(bob).allows("configure", "queue", "q", "/")
    assert identity(ann) is identity(ann)
    assert ann.for_vhost("other") is None


def test_a_permission_of_the_user_replaces_the_role_in_its_virtual_host(users: Users) -> None:
    users.define_role("devices", DEVICES | {"b": RoleGrant((".*", ".*", ".*"), [])})
    ann = member(users)
    users.set_permission("/", "ann", "", "", ".*")
    assert not identity(ann).allows("write", "exchange", "amq.topic", "/")
    assert identity(ann, "b").allows("write", "exchange", "amq.topic", "b")
    assert ann.role_grant("/") is None and ann.role_grant("b") is not None
    users.remove_permission("/", "ann")
    assert identity(ann).may_publish(b"plant/ann/x")


def test_a_changed_role_applies_at_once_and_its_users_are_reviewed(users: Users) -> None:
    users.define_role("devices", DEVICES)
    ann = member(users)
    changed: list[str] = []
    users.changed.append(changed.append)
    before = identity(ann)
    users.define_role("devices", dict(DEVICES))
    assert changed == [] and identity(ann) is before
    users.define_role("devices", {"/": RoleGrant(("", "", ""), ["deny all #"])})
    assert changed == [""]
    assert identity(ann) is not before
    assert identity(ann).read_scope("amq.topic", "plant.#", "plant/#", True) == READ_NONE
    users.define_role("devices", {})
    assert ann.for_vhost("/") is None


def test_a_user_gets_another_role_or_none_and_keeps_it_otherwise(users: Users) -> None:
    users.define_role("devices", DEVICES)
    users.define_role("readers", {"/": RoleGrant(("", "", ".*"), [])})
    member(users)
    ann = users.define("ann", "hash", ["monitoring"])
    assert ann.role_name == "devices"
    ann = member(users, role="readers")
    assert identity(ann).read_scope("amq.topic", "#", "#", True) == READ_ALL
    assert users.define("ann", "", [], role="").for_vhost("/") is None
    with pytest.raises(PreconditionFailed, match="there is no role 'none': create it with"):
        member(users, role="none")


def test_a_role_with_users_is_not_deleted(users: Users) -> None:
    users.define_role("devices", DEVICES)
    member(users)
    with pytest.raises(
        PreconditionFailed,
        match="cannot delete role 'devices': users with this role: 1, for example 'ann'",
    ):
        users.remove_role("devices")
    users.remove("ann")
    assert users.remove_role("devices") and not users.remove_role("devices")


def test_the_permissions_of_a_deleted_virtual_host_leave_all_roles(users: Users) -> None:
    users.define_role("devices", DEVICES | {"b": RoleGrant((".*", ".*", ".*"), [])})
    users.remove_vhost("b")
    assert list(users.roles.by_name["devices"].grants) == ["/"]


def delete_vhost(world: World, name: str) -> None:
    while name in world.broker.vhosts:
        world.sleep(SLICE_PAUSE_MS)


def test_a_role_with_an_old_rule_does_not_prevent_the_deletion_of_a_virtual_host() -> None:
    world = World()
    world.broker.create_vhost("b")
    rows = {"/": {"rules": ["allow all {user}/#"]}, "b": {"read": ".*"}}
    world.broker.users.roles.add("devices", {"vhosts": rows})
    world.broker.close_vhost("b")
    delete_vhost(world, "b")
    assert list(world.broker.users.roles.by_name["devices"].grants) == ["/"]


def test_rights_that_are_set_while_a_virtual_host_is_deleted_do_not_apply_to_the_next_one(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    users = home.broker.users
    home.broker.create_vhost("b")
    users.define("ann", "", [])
    home.amqp(vhost="b")
    home.broker.close_vhost("b")
    users.set_permission("b", "ann", ".*", ".*", ".*")
    users.define_role("devices", DEVICES | {"b": RoleGrant((".*", ".*", ".*"), [])})
    home.review()
    delete_vhost(home, "b")
    home.broker.create_vhost("b")
    member(users, "bob")
    for name in ("ann", "bob"):
        assert users.by_name[name].for_vhost("b") is None
    home.turn()
    home.crash()
    again = Home(tmp_path).broker.users
    for name in ("ann", "bob"):
        assert again.by_name[name].for_vhost("b") is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "'vhosts' must be an object such as"),
        ({"/": []}, "in the field 'vhosts', the value of vhost '/' must be an object"),
        ({"/": {"read": 1}}, "'read' of vhost '/' must be a string"),
        ({"/": {"rules": "x"}}, "'rules' of vhost '/' must be a list"),
        ({"/": {"write": "("}}, "role 'r': permission in vhost '/': "),
        ({"/": {"rules": ["allow"]}}, "role 'r': invalid rule in vhost '/': 'allow' is not a rule"),
        ({"/": {"rules": ["reserve client {username}"]}}, "reserves a client identifier"),
    ],
)
def test_wrong_roles_are_refused(users: Users, given: object, text: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        users.define_role("r", grants_of(given))
    assert text in str(refused.value)
    assert not users.roles.by_name


def test_a_name_with_which_a_rule_is_too_long_has_no_permissions(users: Users) -> None:
    users.define_role("long", {"/": RoleGrant(("{username}" * 20, "", ""), [])})
    assert member(users, "ann", "long").for_vhost("/") is not None
    assert member(users, "a" * 255, "long").for_vhost("/") is None


def test_roles_survive_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.broker.users.define_role("devices", DEVICES)
    member(home.broker.users)
    home.broker.users.define_role("devices", DEVICES | {"b": RoleGrant((".*", "", ""), [])})
    home.broker.users.define_role("gone", {})
    home.broker.users.remove_role("gone")
    home.turn()
    home.crash()
    again = Home(tmp_path).broker.users
    assert list(again.roles.by_name) == ["devices"]
    assert again.roles.by_name["devices"].row["vhosts"] == {
        "/": {
            "configure": "^$",
            "write": ".*",
            "read": ".*",
            "rules": ["allow all plant/{username}/#"],
        },
        "b": {"configure": ".*", "write": "", "read": "", "rules": []},
    }
    assert identity(again.by_name["ann"]).may_publish(b"plant/ann/x")


def test_a_review_after_a_change_of_a_role_takes_small_shares() -> None:
    """Check that the broker checks fewer clients in a turn after a change of a role.

    The change makes the broker check all clients with this role again. Each check takes longer than
    usual, because the broker must compute the user's permissions again.
    """
    agenda = Agenda()
    seen: list[int] = []
    review = Review(agenda, 32, lambda: list(range(100)), seen.append)

    def counts() -> list[int]:
        reviewed = []
        while not agenda.idle:
            before = len(seen)
            agenda.turn()
            reviewed.append(len(seen) - before)
        return reviewed

    review.start()
    assert counts() == [32, 32, 32, 4]
    review.start(16)
    assert counts() == [2] * 50
    review.start(16)
    agenda.turn()
    review.start()
    # Another `start` does not change the pace of a slower review that is running.
    assert counts() == [2] * 50
    review.start()
    assert counts() == [32, 32, 32, 4]
