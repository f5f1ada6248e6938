"""Tests of the immutable subscriber set: adding or removing a subscriber makes a new set.

The old set stays unchanged.
"""

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
def test_subscribers_are_added_and_removed_and_earlier_sets_do_not_change(
    subscribers: list[object],
) -> None:
    value: SubscriberSet[object] = None
    present: list[object] = []
    earlier: list[tuple[SubscriberSet[object], list[object]]] = []
    for subscriber in subscribers:
        assert holds(value, subscriber) == (subscriber in present)
        if subscriber in present:
            value = without(value, subscriber)
            present.remove(subscriber)
        else:
            value = with_added(value, subscriber)
            present.append(subscriber)
        earlier.append((value, present.copy()))
    for then, those in earlier:
        assert (then is None) == (not those)
        subscribers_then = members(then)
        assert len(subscribers_then) == len(those)
        assert all(subscriber in those for subscriber in subscribers_then)


def test_merging_several_sets_returns_every_subscriber_once() -> None:
    few: SubscriberSet[object] = with_added(with_added(None, "x"), None)
    many: SubscriberSet[object] = None
    for subscriber in range(40):
        many = with_added(many, subscriber)
    assert merged([]) == []
    assert set(merged([many])) == set(range(40))
    assert sorted(map(str, merged(["x", few, 7, many]))) == sorted(
        map(str, ["x", None, *range(40)])
    )


def test_the_caller_owns_the_list_that_merged_returns() -> None:
    few: SubscriberSet[int] = with_added(with_added(None, 1), 2)
    merged([few]).append(3)
    assert members(few) == [1, 2]
