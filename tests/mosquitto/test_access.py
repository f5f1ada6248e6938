"""Tests that imported topic rules decide as a model of Mosquitto does."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.access.identity import Identity
from broker.access.rules import RULES_MAX, UserPermissions
from tests.mosquitto import model
from trellis.mosquitto.access import limited
from trellis.mosquitto.acl_file import read_acl
from trellis.mosquitto.dynamic_security import DynamicSecurity
from trellis.mosquitto.report import DIFFERS, NOT_TAKEN, Report

WORDS = ("a", "b", "u", "c")
TOPICS = [
    "/".join(words) for size in (1, 2, 3) for words in product(("a", "u", "c"), repeat=size)
] + ["$x", "$x/a", "$SYS/a", "$SYS/broker/connection/c/state", "$CONTROL/a", "a//b", "/a"]
FILE = Path("acl")

FILTERS = (
    st.lists(st.sampled_from([*WORDS, "+", "%u", "%c"]), min_size=1, max_size=3)
    .flatmap(lambda words: st.sampled_from(["/".join(words), "/".join([*words[:2], "#"])]))
    .flatmap(lambda text: st.sampled_from([text, text, f"$x/{text}", "#", "$SYS/#"]))
)
LINES = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.just(""), st.sampled_from(["u", "v"])),
        st.tuples(
            st.sampled_from(["topic", "pattern"]),
            st.sampled_from(["read", "write", "readwrite", "deny"]),
            FILTERS,
        ),
    ),
    max_size=10,
)


def identity(rules: list[str], user: str | None, client_id: str) -> Identity:
    name = "anonymous" if user is None else user
    return UserPermissions(name, "/", (".*", ".*", ".*"), rules).identity(client_id)


def text_of(lines: list[tuple[str, str, str]]) -> str:
    return "\n".join(
        f"user {name}" if kind == "user" else f"{kind} {right} {name}"
        for kind, right, name in lines
    )


@given(LINES)
@example([("topic", "readwrite", "#"), ("topic", "deny", "a/#")])
@example([("user", "", "u"), ("pattern", "deny", "%u/#"), ("topic", "read", "u/a")])
def test_an_acl_file_decides_as_in_mosquitto(lines: list[tuple[str, str, str]]) -> None:
    report = Report()
    acl = read_acl(text_of(lines), FILE, report)
    for user, client_id in (("u", "c"), ("v", "u"), (None, "c"), ("w", "a")):
        allowed = identity(acl.rules(user, report), user, client_id)
        for topic in TOPICS:
            for access, verdict in (
                (model.READ, allowed.may_read(topic.encode())),
                (model.WRITE, allowed.may_publish(topic.encode())),
            ):
                wanted = model.acl_file_decides(lines, user, client_id, topic, access)
                assert verdict == wanted, (user, client_id, topic, access)
    assert not report.count(NOT_TAKEN)


ODD_NAMES = ("a/u", "+", "#", "{client_id}", "$x", "a+")
ODD_FILTERS = st.one_of(
    FILTERS,
    st.sampled_from(
        ["{client_id}/#", "a/{username}", "x%c/+", "%u%c", "{client_%u", "a/#/b", "a/{user}"]
    ),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["topic", "pattern"]),
            st.sampled_from(["read", "write", "readwrite", "deny"]),
            ODD_FILTERS,
        ),
        max_size=6,
    ),
    st.sampled_from([*ODD_NAMES, "id}", None]),
    st.sampled_from([*ODD_NAMES, ""]),
)
def test_an_import_never_allows_more_than_mosquitto(
    entries: list[tuple[str, str, str]], user: str | None, client_id: str
) -> None:
    # In Mosquitto, no pattern applies to a client identifier with a wildcard. The import names the
    # patterns for which Trellis cannot do this.
    named = [entry for entry in entries if entry[0] == "topic" or "%c" in entry[2]]
    lines = named if set("+#") & set(client_id) else entries
    lines = ([("user", "", user)] if user else []) + lines
    report = Report()
    acl = read_acl(text_of(lines), FILE, report)
    allowed = identity(acl.rules(user, report), user, client_id)
    for topic in [
        *TOPICS,
        "a/u/a",
        "{client_id}/a",
        "a/{username}",
        "xa/u/a",
        "a/{user}",
        "+/a",
        "id}",
    ]:
        if allowed.may_read(topic.encode()):
            assert model.acl_file_decides(lines, user, client_id, topic, model.READ), topic
        if allowed.may_publish(topic.encode()):
            assert model.acl_file_decides(lines, user, client_id, topic, model.WRITE), topic


def test_lines_that_cannot_be_taken_are_named() -> None:
    report = Report()
    acl = read_acl(
        "topic maybe a b\ntopik read a\ntopic {client_id}/#\ntopic deny {username}\n"
        "pattern write a-%c\npattern read b\n",
        FILE,
        report,
    )
    rules = acl.rules(None, report)
    assert rules == [
        "deny all $+/#",
        "deny all +",
        "allow publish a-{client_id}",
        "allow subscribe b",
    ]
    assert sorted((note.place.number, note.kind) for note in report.notes) == [
        (1, NOT_TAKEN),
        (2, NOT_TAKEN),
        (3, NOT_TAKEN),
        (4, DIFFERS),
        (5, DIFFERS),
        (6, DIFFERS),
    ]


def test_rules_above_the_limit_are_left_out_and_denials_are_kept() -> None:
    allows = [f"allow all a/{number}" for number in range(RULES_MAX)]
    assert limited(allows) == (allows, 0)
    kept, left_out = limited(["deny all b", *allows, "deny all c"])
    assert (len(kept), left_out) == (RULES_MAX, 2)
    assert kept[0] == "deny all b" and kept[-1] == "deny all c" and kept[-2] == "allow all a/197"
    denies = [f"deny all a/{number}" for number in range(RULES_MAX + 1)]
    assert limited(denies) == (["deny all #"], RULES_MAX + 1)


# -- dynamic security


def _members(name: str, names: list[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    member = st.fixed_dictionaries(
        {name: st.sampled_from(names)}, optional={"priority": st.integers(-2, 2)}
    )
    return st.lists(member, max_size=2, unique_by=lambda one: str(one[name]))


ACLS = st.lists(
    st.fixed_dictionaries(
        {
            "acltype": st.sampled_from(
                [
                    "publishClientSend",
                    "publishClientReceive",
                    "subscribePattern",
                    "subscribeLiteral",
                    "unsubscribePattern",
                ]
            ),
            "topic": FILTERS,
            "allow": st.booleans(),
        },
        optional={"priority": st.integers(-2, 2)},
    ).filter(
        lambda acl: acl["acltype"] != "subscribeLiteral" or not set("+#%") & set(str(acl["topic"]))
    ),
    max_size=4,
    unique_by=lambda acl: (str(acl["acltype"]), str(acl["topic"])),
)
ROLES = ["r1", "r2", "r3"]
DOCUMENTS = st.fixed_dictionaries(
    {
        "defaultACLAccess": st.fixed_dictionaries(
            {
                name: st.booleans()
                for name in (
                    "publishClientSend",
                    "publishClientReceive",
                    "subscribe",
                    "unsubscribe",
                )
            }
        ),
        "clients": st.tuples(
            st.fixed_dictionaries({"username": st.just("u"), "roles": _members("rolename", ROLES)})
        ).map(list),
        "groups": st.tuples(
            *[
                st.fixed_dictionaries(
                    {
                        "groupname": st.just(name),
                        "roles": _members("rolename", ROLES),
                        "clients": _members("username", ["u"]),
                    }
                )
                for name in ("g1", "g2")
            ]
        ).map(list),
        "roles": st.tuples(
            *[st.fixed_dictionaries({"rolename": st.just(name), "acls": ACLS}) for name in ROLES]
        ).map(list),
        "anonymousGroup": st.sampled_from(["g1", ""]),
    }
)


@given(DOCUMENTS)
def test_dynamic_security_decides_as_in_mosquitto(document: dict[str, Any]) -> None:
    dynamic = DynamicSecurity(document, FILE, Report())
    variables = any("%c" in acl["topic"] for role in document["roles"] for acl in role["acls"])
    for user, client_id in (("u", "c"), (None, "c"), ("u", "a")):
        allowed = identity(dynamic.rules(user), user, client_id)
        for topic in TOPICS:
            wanted = model.dynamic_decides(document, user, client_id, topic, "send")
            assert allowed.may_publish(topic.encode()) == wanted, topic
            wanted = all(
                model.dynamic_decides(document, user, client_id, topic, kind)
                for kind in ("subscribe", "receive")
            )
            verdict = allowed.may_read(topic.encode())
            # Rules with a variable deny topics that they cannot compare with the variable's value,
            # so Trellis may deny more than Mosquitto.
            assert verdict == wanted or (variables and not verdict), topic


@pytest.mark.parametrize("document", [7, [], "x"])
def test_a_document_that_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        DynamicSecurity(document, FILE, Report())
