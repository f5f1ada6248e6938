"""Stores the subscribers of one pattern as an immutable value, for the concurrent matchers.

    None | subscriber | [two, or a few] | Hamt of many

Every change makes a new value. Copying a short list is cheap. A new `Hamt` shares all but one path
with the old `Hamt`, so if 20,000 clients subscribe to one filter, the set is not copied as a whole
20,000 times. A subscriber that could be mistaken for a container (None, or a hashable subclass of
list or `Hamt`) is wrapped in a list. `bucket` is the mutable counterpart.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

from matching.hamt import Hamt, only

S = TypeVar("S")

SubscriberSet: TypeAlias = S | list[S] | Hamt[S, bool] | None

#: The most subscribers in a list. A map shrinks back to a list at half this size.
_FEW: Final = 16


def holds(subscribers: SubscriberSet[S], subscriber: S) -> bool:
    """True if the subscriber is in the set."""
    if isinstance(subscribers, list):
        return subscriber in subscribers
    if isinstance(subscribers, Hamt):
        return subscribers.get(subscriber) is not None
    return subscribers is not None and (subscribers is subscriber or subscribers == subscriber)


def with_added(subscribers: SubscriberSet[S], subscriber: S) -> SubscriberSet[S]:
    """Return the set plus a subscriber that it does not contain yet."""
    if isinstance(subscribers, Hamt):
        return subscribers.put(subscriber, True)
    if isinstance(subscribers, list):
        if len(subscribers) < _FEW:
            return [*subscribers, subscriber]
        many = only(subscriber, True)
        for each in subscribers:
            many = many.put(each, True)
        return many
    if subscribers is not None:
        return [subscribers, subscriber]
    return subscriber if _plain(subscriber) else [subscriber]


def without(subscribers: SubscriberSet[S], subscriber: S) -> SubscriberSet[S]:
    """Return the set minus a subscriber that it contains; None if it becomes empty."""
    if isinstance(subscribers, Hamt):
        fewer = subscribers.without(subscriber)
        assert fewer is not None
        return fewer if len(fewer) * 2 > _FEW else members(fewer)
    if isinstance(subscribers, list):
        rest = subscribers.copy()
        rest.remove(subscriber)
        if len(rest) == 1 and _plain(rest[0]):
            return rest[0]
        return rest if rest else None
    return None


def members(subscribers: SubscriberSet[S]) -> list[S]:
    """Return the subscribers in the set."""
    subscriber_list: list[S] = []
    _take(subscribers, subscriber_list)
    return subscriber_list


def merged(sets: list[SubscriberSet[S]]) -> list[S]:
    """Return the subscribers in any of the sets, each once."""
    union: list[S] = []
    for subscribers in sets:
        _take(subscribers, union)
    return union if len(sets) < 2 else list(dict.fromkeys(union))


def _take(subscribers: SubscriberSet[S], subscriber_list: list[S]) -> None:
    """Append the subscribers in the set to `subscriber_list`."""
    if isinstance(subscribers, Hamt):
        for leaf in subscribers.leaves():
            subscriber_list.extend(leaf)
    elif isinstance(subscribers, list):
        subscriber_list.extend(subscribers)
    elif subscribers is not None:
        subscriber_list.append(subscribers)


def _plain(subscriber: S) -> bool:
    """True if the subscriber itself is a valid set: it is not None, a list or a Hamt."""
    return subscriber is not None and not isinstance(subscriber, (list, Hamt))
