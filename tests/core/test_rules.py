"""Tests of topic rules: their decisions are compared with a definition, for all short topics."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.access.identity import READ_ALL, READ_NONE, READ_SOME, Identity
from broker.access.roles import RoleGrant
from broker.access.rules import RULES_MAX, Rule, UserPermissions, check_rule_variables
from broker.access.users import Users
from broker.errors import PreconditionFailed
from broker.store.memory import MemoryStore
from matching.grammar import AMQP, MQTT, swap

WORDS = ("a", "b", "$x", "")
TOPICS = [
    "/".join(words)
    for size in (1, 2, 3)
    for words in product(WORDS, repeat=size)
    if any(words) or size > 1
]


def ruled(
    *rules: str,
    user: str = "u",
    client_id: str = "",
    topics: dict[str, tuple[str, str]] | None = None,
) -> Identity:
    return UserPermissions(user, "/", (".*", ".*", ".*"), rules, topics).identity(client_id)


def decides(rules: list[str], topic: str, action: str) -> bool:
    """True if the first rule that matches the topic allows the action; False if no rule matches.

    The wildcards of a rule also match words that begin with `$`. `$+` as the first word of a rule
    matches only words that begin with `$`.
    """
    for text in rules:
        what, actions, topic_filter = text.split(maxsplit=2)
        words = topic_filter.split("/")
        if words[0] == "$+":
            if not topic.startswith("$"):
                continue
            words[0] = "+"
        amqp = ".".join("*" if word == "+" else word for word in words)
        if actions in (action, "all") and (
            AMQP.matches(amqp, swap(topic)) or topic_filter == topic
        ):
            return what == "allow"
    return False


FILTERS = (
    st.lists(st.sampled_from([*WORDS, "+"]), min_size=1, max_size=3)
    .flatmap(lambda words: st.sampled_from(["/".join(words), "/".join([*words[:2], "#"])]))
    .filter(bool)
)
RULES = st.lists(
    st.builds(
        lambda what, action, words: f"{what} {action} {words}",
        st.sampled_from(["allow", "deny"]),
        st.sampled_from(["publish", "subscribe", "all"]),
        st.one_of(FILTERS, FILTERS.map("$+/{}".format), st.just("$+")).filter(
            lambda one: one.strip() == one
        ),
    ),
    max_size=5,
)


@given(RULES, FILTERS)
@example(["allow subscribe #"], "$x/#")
@example(["deny subscribe $x/#", "allow all #"], "#")
@example(["allow all a/#"], "a")
def test_rules_decide_as_each_topic_is_decided(rules: list[str], topic_filter: str) -> None:
    if not rules:
        return
    identity = ruled(*rules)
    taken = [topic for topic in TOPICS if MQTT.matches(topic_filter, topic)]
    allowed = [topic for topic in taken if decides(rules, topic, "subscribe")]
    verdict = identity.read_scope("amq.topic", "", topic_filter, True)
    if verdict == READ_ALL:
        assert allowed == taken
    elif verdict == READ_NONE:
        assert not allowed
    assert [topic for topic in taken if identity.may_read(topic.encode())] == allowed
    for topic in TOPICS:
        assert identity.may_route("amq.topic", "", topic.encode()) == decides(
            rules, topic, "publish"
        )


@given(RULES, FILTERS)
def test_a_binding_key_matches_topics_that_begin_with_a_dollar_too(
    rules: list[str], topic_filter: str
) -> None:
    if not rules:
        return
    amqp = ".".join("*" if word == "+" else word for word in topic_filter.split("/"))
    verdict = ruled(*rules).read_scope("amq.topic", amqp, topic_filter, False)
    allowed = {
        decides(rules, topic, "subscribe") for topic in TOPICS if AMQP.matches(amqp, swap(topic))
    }
    assert verdict == READ_SOME or allowed <= {verdict == READ_ALL}


@pytest.mark.parametrize(
    ("rules", "topic_filter", "verdict"),
    [
        (["allow all sensors/#"], "sensors/+/temp", READ_ALL),
        (["allow all sensors/#"], "#", READ_SOME),
        (["allow all sensors/#"], "actors/#", READ_NONE),
        (["deny all internal/#", "allow all #"], "#", READ_SOME),
        (["deny all internal/#", "allow all #"], "+/x", READ_SOME),
        (["deny all internal/#", "allow all #"], "open/#", READ_ALL),
        (["allow subscribe a/+", "deny all a/#", "allow all #"], "a/b", READ_ALL),
        (["allow publish #"], "a", READ_NONE),
        (["deny all $SYS/#", "allow all #"], "#", READ_ALL),
        (["allow all #"], "$SYS/#", READ_ALL),
        (["deny all $+/#", "allow all #"], "$SYS/#", READ_NONE),
        (["deny all $+/#", "allow all #"], "#", READ_ALL),
        (["allow all $SYS/a", "deny all $+/#", "allow all #"], "$SYS/#", READ_SOME),
    ],
)
def test_a_filter_is_permitted_refused_or_permitted_in_part(
    rules: list[str], topic_filter: str, verdict: int
) -> None:
    assert ruled(*rules).read_scope("amq.topic", "", topic_filter, True) == verdict


def test_variables_stand_for_names_and_a_name_that_is_not_a_word_matches_no_topic() -> None:
    rules = (
        "allow publish {username}/{vhost}/{client_id}/#",
        "deny subscribe private/{client_id}",
        "allow subscribe #",
    )
    permissions = UserPermissions("u", "v", (".*", ".*", ".*"), rules)
    own, other = permissions.identity("c"), permissions.identity("+")
    assert own is permissions.identity("c")
    assert own.may_publish(b"u/v/c/x")
    assert not own.may_publish(b"u/v/d/x")
    assert not other.may_publish(b"u/v/+/x")
    assert own.read_scope("", "", "private/d", True) == READ_ALL
    assert other.read_scope("", "", "private/d", True) == READ_NONE


def test_a_client_whose_name_is_too_long_for_a_rule_has_no_permission() -> None:
    permissions = UserPermissions(
        "u", "/", (".*", ".*", ".*"), ["allow all {client_id}/#", "allow all #"]
    )
    assert permissions.identity("c").may_publish(b"x")
    assert not permissions.identity("c" * 65_536).may_publish(b"x")
    with pytest.raises(PreconditionFailed, match="must be the last level"):
        UserPermissions("u", "/", (".*", ".*", ".*"), ["allow all #/{client_id}"])


def test_topic_permissions_are_regular_expressions_in_which_names_are_literal() -> None:
    permissions = UserPermissions(
        "u.", "/", (".*", ".*", ".*"), (), {"amq.topic": (r"^{username}\.", "^{client_id}$")}
    )
    assert permissions.identity("c").may_route("amq.topic", "u..x", b"u//x")
    assert not permissions.identity("c").may_route("amq.topic", "ux.x", b"ux/x")
    assert permissions.identity("c").may_route("other", "ux.x", b"ux/x")
    assert permissions.identity("c").read_scope("amq.topic", "c", "c", True) == READ_ALL
    assert permissions.identity(".*").read_scope("amq.topic", "c", "c", True) == READ_NONE
    assert permissions.identity("").read_scope("amq.topic", "", "c", True) == READ_NONE


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (["permit all #"], "'permit all #' is not a rule such as"),
        (["alow all a/#"], "#': the first word is 'alow', not one of allow, deny, reserve$"),
        (["deny read a/#"], "the second word is 'read', not one of publish, subscribe, all$"),
        (["allow sensors/#"], "the second word is 'sensors/#', not one of publish, subscribe, all"),
        (["allow publish"], "a rule has 3 words, and this rule has 2$"),
        ([" "], "a rule has 3 words, and this rule has 0$"),
        (["allow all a/#/b"], "must be the last level"),
        (["allow all"], "not a rule such as"),
        (["allow all #"] * (RULES_MAX + 1), "the limit is 200"),
        (["allow all " + "a/" * 300], "must not have more than"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_reason(rules: list[str], reason: str) -> None:
    with pytest.raises(PreconditionFailed, match=reason):
        UserPermissions("u", "/", ("", "", ""), rules)


VARIABLES = "the variables are {username}, {vhost}, {client_id}"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (
            "allow publish a/{user}/#",
            "there is no variable {user}; the nearest is {username}; ",
        ),
        ("deny all {clientid}", "there is no variable {clientid}; the nearest is {client_id}; "),
        ("allow all ${username}/#", "there is no variable ${username}; the nearest is {username}"),
        ("allow all {user_name}", VARIABLES),
        (
            "reserve client {client_id}-*",
            "the nearest is {username}; the variables are {username}, {vh",
        ),
    ],
)
def test_a_new_rule_with_a_misspelt_variable_is_refused_and_a_stored_one_is_kept(
    rule: str, reason: str
) -> None:
    users = Users(MemoryStore())
    users.define("ann", "", [])
    users.set_permission("/", "ann", ".*", ".*", ".*")
    with pytest.raises(PreconditionFailed) as refusal:
        users.set_rules("/", "ann", ["allow all #", rule])
    assert f"invalid rule '{rule}' of user 'ann' in vhost '/': " in str(refusal.value)
    assert reason in str(refusal.value)
    assert users.by_name["ann"].rules == {}
    if not rule.startswith("reserve"):
        with pytest.raises(PreconditionFailed, match=re.escape(reason)) as refusal:
            users.define_role("devices", {"/": RoleGrant(("", "", ""), [rule])})
        assert str(refusal.value).startswith(
            f"role 'devices': invalid rule '{rule}' in vhost '/': "
        )
    # An earlier version may have stored such a rule. The broker accepts a stored rule, and the user
    # keeps it.
    row = {"configure": "", "write": "", "read": "", "rules": [rule]}
    users.add_permission("/", "ann", row)
    assert users.by_name["ann"].rules == {"/": [rule]}
    users.set_permission("/", "ann", ".*", ".*", ".*")
    assert users.by_name["ann"].rules == {"/": [rule]}


@pytest.mark.parametrize(
    "rule",
    [
        "allow all {username}/{vhost}/{client_id}",
        "allow all {3F2504E0-4F89-11D3-9A0C-0305E82C3301}/{}/{a b}/{",
        "reserve client {username}-{vhost}-*",
    ],
)
def test_variables_and_other_words_in_braces_are_accepted(rule: str) -> None:
    check_rule_variables(rule)


def test_a_topic_permission_that_may_take_long_allows_no_long_topic() -> None:
    """A slow pattern would take very long on a long topic, and clients choose the topics.

    So a topic permission with such a pattern refuses long topics.
    """
    slow, quick = r"^a\..*\.b\..*\.c$", r"^a\..*\.c$"
    identity = ruled(topics={"slow": (slow, slow), "quick": (quick, quick)})
    for exchange, size, allowed in (
        ("slow", 10, True),
        ("quick", 10, True),
        ("slow", 20_000, False),
        ("quick", 20_000, True),
    ):
        key = "a." + ".b." * size + ".c"
        topic = swap(key)
        assert identity.may_route(exchange, key, topic.encode()) == allowed
        assert (identity.read_scope(exchange, key, topic, True) == READ_ALL) == allowed


def test_an_invalid_regular_expression_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="not a regular expression"):
        UserPermissions("u", "/", ("(", "", ""))


def test_a_comparison_with_a_rule_is_one_pass_over_its_words() -> None:
    """The steps of a comparison grow only linearly with its words, also for a hostile rule."""
    rule = Rule("allow all " + "/".join(["+"] * 199) + "/b", "u", "/")
    steps = 0

    class Counted(list[str]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().__getitem__(at)

    words = Counted(["+"] * 199 + ["a"])
    assert not rule.covers(words)
    assert not rule.overlaps(words, True)
    assert steps < 5 * 200


# -- names that look like variables

LOOKALIKES = ("{client_id}", "{username}", "{vhost}", "x{client_id}y")


@pytest.mark.parametrize("user", LOOKALIKES)
def test_a_user_named_like_a_variable_gains_nothing(user: str) -> None:
    rules = ("allow all home/{username}/{client_id}",)
    identity = UserPermissions(user, "v", (".*", ".*", ".*"), rules).identity("victim")
    assert identity.may_publish(f"home/{user}/victim".encode())
    assert not identity.may_publish(b"home/victim/victim")
    assert not identity.may_publish(b"home/xvictimy/victim")
    assert not identity.may_publish(b"home/v/victim")


@pytest.mark.parametrize("user", LOOKALIKES)
def test_topic_permissions_replace_variables_once_too(user: str) -> None:
    topics = {"amq.topic": ("^home.{username}.{client_id}$", ".*")}
    identity = UserPermissions(user, "v", (".*", ".*", ".*"), (), topics).identity("victim")

    def may(key: str) -> bool:
        return identity.may_route("amq.topic", key, key.replace(".", "/").encode())

    assert may(f"home.{user}.victim")
    assert not may("home.victim.victim") and not may("home.xvictimy.victim")
