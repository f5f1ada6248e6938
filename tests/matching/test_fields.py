"""Tests of headers bindings: their criteria, and that every algorithm finds them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.fields import NAMES, Criteria, Fields, HeadersMatcher, InvalidCriteria, create
from matching.fields.matcher import FieldsRow


@pytest.fixture(params=NAMES)
def matcher(request: pytest.FixtureRequest) -> HeadersMatcher[object]:
    return create(request.param)


# -- criteria


@pytest.mark.parametrize(
    ("arguments", "headers", "accepted"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-a": 1}, {}, True),
        ({"x-match": "all-with-x"}, {}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": 1}, {"a": None}, False),
        ({"x-match": "any", "a": None, "b": 1}, {"a": 1, "b": 1}, True),
        ({"xa": 1}, {}, False),
    ],
)
def test_criteria(
    matcher: HeadersMatcher[object], arguments: Fields, headers: Fields, accepted: bool
) -> None:
    assert Criteria(arguments).accept(headers) is accepted
    matcher.bind(arguments, "x")
    assert matcher.match(headers) == ["x"] * accepted


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wanted", "carried", "equal"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("1", 1, False),
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (0, False, False),
        (1.0, True, False),
        (True, True, True),
        (True, False, False),
        ("true", True, False),
        (1.5, 1.5, True),
        (float("nan"), float("nan"), False),
        (2**63, 2**63, True),
        (b"a", "a", True),
        ("a", bytearray(b"a"), True),
        (b"\xff", b"\xff", True),
        (b"\xff", "\xff", False),
        (NOON, NOON, True),
        (NOON, int(NOON.timestamp()), True),
        (NOON, NOON.timestamp(), False),
        (Decimal("1.0"), Decimal("1.0"), True),
        (Decimal("1.0"), Decimal("1.00"), False),
        (Decimal(1), 1, False),
        ([1, "a"], [1, "a"], True),
        ([1, "a"], ["a", 1], False),
        ([1], [True], False),
        ([1], 1, False),
        ([], {}, False),
        ({"k": 1, "l": [None]}, {"l": [None], "k": 1}, True),
        ({"k": 1}, {"k": True}, False),
        ({"k": 1}, {"l": 1}, False),
        (Fraction(1), Fraction(1), True),
        (Fraction(1), 1, False),
    ],
)
def test_values_are_compared_by_kind_and_value(
    matcher: HeadersMatcher[object], wanted: object, carried: object, equal: bool
) -> None:
    matcher.bind({"a": wanted}, "all")
    matcher.bind({"x-match": "any", "a": wanted}, "any")
    assert sorted(map(str, matcher.match({"a": carried}))) == ["all", "any"] * equal


@pytest.mark.parametrize("kind", ["some", "ALL", "", 1, None, b"all"])
def test_an_unknown_x_match_is_refused_and_leaves_nothing(
    matcher: HeadersMatcher[object], kind: object
) -> None:
    with pytest.raises(
        InvalidCriteria,
        match=r"invalid x-match field value .*; expected all, any, all-with-x, any-with-x",
    ):
        matcher.bind({"x-match": kind, "a": 1}, "x")
    assert len(matcher) == 0
    assert matcher.match({"a": 1}) == []


@pytest.mark.parametrize(
    ("arguments", "subscriber"), [({"a": 1}, []), ({"a": {1}}, "x"), ({"a": [{1}]}, "x")]
)
def test_an_unhashable_subscriber_is_rejected_without_a_change(
    matcher: HeadersMatcher[object], arguments: Fields, subscriber: object
) -> None:
    fresh = matcher.stats()
    with pytest.raises(TypeError):
        matcher.bind(arguments, subscriber)
    assert matcher.stats() == fresh


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        ValueError,
        match="unknown headers matcher 'rarset'; "
        "the nearest is rarest; known matchers are rarest, hit-counts, roaring, naive",
    ):
        create("rarset")


# -- the contract of headers matchers


def test_binding_twice_is_once(matcher: HeadersMatcher[object]) -> None:
    assert matcher.bind({"a": 1}, "x")
    assert not matcher.bind({"a": 1}, "x")
    assert ({"a": 1}, "x") in matcher
    assert matcher.unbind({"a": 1}, "x")
    assert not matcher.unbind({"a": 1}, "x")
    assert ({"a": 1}, "x") not in matcher


def test_arguments_that_are_no_criteria_make_another_binding(
    matcher: HeadersMatcher[object],
) -> None:
    assert matcher.bind({"a": 1}, "x")
    assert matcher.bind({"a": 1, "x-queue": 1}, "x")
    assert len(matcher) == 2
    assert matcher.match({"a": 1}) == ["x"]
    assert matcher.unbind({"a": 1}, "x")
    assert matcher.match({"a": 1}) == ["x"]


def test_several_subscribers_of_equal_arguments_come_and_go(
    matcher: HeadersMatcher[object],
) -> None:
    people = list(range(40))
    for person in people:
        assert matcher.bind({"a": 1, "b": None}, person)
    assert not matcher.unbind({"a": 1, "b": None}, 40)
    assert not matcher.unbind({"a": 2}, 1)
    assert matcher.stats()["rows"] == 1
    while people:
        assert sorted(map(str, matcher.match({"a": 1, "b": 2}))) == sorted(map(str, people))
        assert matcher.unbind({"b": None, "a": 1}, people.pop())
    assert matcher.match({"a": 1, "b": 2}) == []


def test_removed_bindings_leave_nothing_behind(matcher: HeadersMatcher[object]) -> None:
    fresh = matcher.stats()
    everybody: list[Fields] = [
        {},
        {"a": 1},
        {"a": 1, "b": None},
        {"x-match": "any", "a": 1, "b": 2},
        {"x-match": "any"},
        {"a": 2, "c": 1, "d": 1},
    ]
    for arguments in everybody:
        matcher.bind(arguments, "x")
    assert matcher.stats() != fresh
    assert sorted(map(str, matcher.bindings())) == sorted(
        str((arguments, "x")) for arguments in everybody
    )
    for arguments in everybody:
        assert matcher.unbind(arguments, "x")
    assert matcher.stats() == fresh
    assert matcher.match({"a": 1, "b": 2}) == []


def test_the_answer_belongs_to_the_caller(matcher: HeadersMatcher[object]) -> None:
    matcher.bind({}, "x")
    matcher.match({}).append("y")
    assert matcher.match({}) == ["x"]


def test_a_binding_is_indexed_under_its_rarest_criterion() -> None:
    matcher: HeadersMatcher[object] = create("rarest")
    for trader in range(100):
        matcher.bind({"market": "forex", "urgent": None, "trader": trader}, trader)
    assert matcher.stats()["criteria"] == 100
    assert matcher.stats()["largest"] == 1
    assert matcher.match({"market": "forex", "urgent": 1, "trader": 7}) == [7]


# -- every algorithm equals the definition


class Listed(HeadersMatcher[object]):
    """A matcher of headers with only the methods that a third party must write."""

    def enter(self, row: FieldsRow[object]) -> None:
        """Do nothing: there is no index."""

    def leave(self, row: FieldsRow[object]) -> None:
        """Do nothing: there is no index."""

    def find(self, headers: Fields) -> list[FieldsRow[object]]:
        return [row for row in self.rows() if row.criteria.accept(headers)]


VALUES = st.sampled_from([None, 1, 2, "1", True, 1.0, b"1", [1]])
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d", "x-match"]), VALUES, max_size=5)
ARGUMENTS = st.builds(
    lambda fields, kind: {
        **{name: value for name, value in fields.items() if name != "x-match"},
        **kind,
    },
    HEADERS,
    st.sampled_from(
        [
            {},
            {"x-match": "all"},
            {"x-match": "any"},
            {"x-match": "all-with-x"},
            {"x-match": "any-with-x"},
        ]
    ),
)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(
    history=st.lists(
        st.tuples(st.sampled_from("++-?"), ARGUMENTS, HEADERS, st.integers(0, 3)), max_size=40
    )
)
def test_every_algorithm_equals_the_definition(
    name: str, history: list[tuple[str, Fields, Fields, int]]
) -> None:
    matcher: HeadersMatcher[object] = create(name)
    oracle = Listed()
    bound: list[tuple[Fields, int]] = []
    for what, arguments, headers, person in history:
        if what == "+":
            assert matcher.bind(arguments, person) == oracle.bind(arguments, person)
            bound.append((arguments, person))
        elif what == "-" and bound:
            gone = bound.pop(person % len(bound))
            assert matcher.unbind(*gone) == oracle.unbind(*gone)
            assert gone not in matcher
        subscribers = matcher.match(headers)
        assert len(subscribers) == len(set(subscribers))
        assert set(subscribers) == set(oracle.match(headers))
        assert len(matcher) == len(oracle) == len(list(matcher.bindings()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 8])
def test_counts_of_any_size_are_exact(name: str, most: int) -> None:
    matcher: HeadersMatcher[object] = create(name)
    for needs in range(1, 9):
        matcher.bind({f"k{place}": None if place % 2 else 1 for place in range(needs)}, needs)
    assert sorted(map(str, matcher.match({f"k{place}": 1 for place in range(most)}))) == [
        str(needs) for needs in range(1, most + 1)
    ]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=60)
@given(
    bound=st.lists(st.tuples(ARGUMENTS, st.integers(0, 3)), max_size=40),
    headers=HEADERS,
    meanwhile=st.lists(st.tuples(st.integers(0, 39), ARGUMENTS), max_size=20),
    steps=st.integers(1, 9),
)
def test_paused_lookup_finds_bindings_present_during_all_of_it(
    name: str,
    bound: list[tuple[Fields, int]],
    headers: Fields,
    meanwhile: list[tuple[int, Fields]],
    steps: int,
) -> None:
    matcher: HeadersMatcher[object] = create(name)
    for arguments, person in bound:
        matcher.bind(arguments, person)
    before = set(matcher.match(headers))
    undisturbed: list[object] = []
    for search in matcher.searches(headers, undisturbed):
        while not search.done:
            assert search.advance(steps) <= 0 or search.done
    assert set(undisturbed) == before
    subscribers: list[object] = []
    searches = matcher.searches(headers, subscribers)
    always, ever = before, set(before)
    for search in searches:
        while not search.done:
            search.advance(steps)
            if meanwhile:
                number, arguments = meanwhile.pop()
                if number < len(bound):
                    matcher.unbind(*bound[number])
                else:
                    matcher.bind(arguments, 9)
                now = set(matcher.match(headers))
                always, ever = always & now, ever | now
    assert always <= set(subscribers) <= ever
    for arguments, subscriber in [*matcher.bindings()]:
        matcher.unbind(arguments, subscriber)
    assert matcher.weight == 0
