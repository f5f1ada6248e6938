"""Tests of the immutable subscriber set: no earlier value changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from matching.hamt import only
from matching.subscriber_set import SubscriberSet, holds, members, merged, with_added, without


class Row(list[int]):
    """A hashable list, which can be a subscriber."""

    def __hash__(self) -> int:  # type: ignore[override] # that is the point
        return 1


ANYBODY = [None, 0, "", (), Row([1]), Row(), float("nan"), only("a", 1), *range(1, 40)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(ANYBODY), max_size=90))
def test_anybody_comes_and_goes_and_former_crowds_stay_as_they_were(people: list[object]) -> None:
    crowd: SubscriberSet[object] = None
    inside: list[object] = []
    former: list[tuple[SubscriberSet[object], list[object]]] = []
    for person in people:
        assert holds(crowd, person) == (person in inside)
        if person in inside:
            crowd = without(crowd, person)
            inside.remove(person)
        else:
            crowd = with_added(crowd, person)
            inside.append(person)
        former.append((crowd, inside.copy()))
    for then, those in former:
        assert (then is None) == (not those)
        found = members(then)
        assert len(found) == len(those)
        assert all(person in those for person in found)


def test_of_several_crowds_everybody_is_named_once() -> None:
    few: SubscriberSet[object] = with_added(with_added(None, "x"), None)
    many: SubscriberSet[object] = None
    for person in range(40):
        many = with_added(many, person)
    assert merged([]) == []
    assert set(merged([many])) == set(range(40))
    assert sorted(map(str, merged(["x", few, 7, many]))) == sorted(
        map(str, ["x", None, *range(40)])
    )


def test_what_merged_returns_belongs_to_the_caller() -> None:
    few: SubscriberSet[int] = with_added(with_added(None, 1), 2)
    merged([few]).append(3)
    assert members(few) == [1, 2]
