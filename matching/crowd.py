"""The subscribers of one pattern, as a value that never changes; else as a `Bucket`.

    None | subscriber | [two, or a few] | Hamt of many

A list is copied to be changed, and to copy it is cheap while it is short; 20,000 clients on one
filter are 20,000 changes, none of which may copy them all. Neither a list nor a `Hamt` is ever a
subscriber itself: who subscribes None, or a list of an own hashable kind, gets a list around it.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

from matching.hamt import Hamt, only

S = TypeVar("S")

SubscriberSet: TypeAlias = S | list[S] | Hamt[S, bool] | None

#: What a list holds at most; a map becomes a list again at half of it.
_FEW: Final = 16


def holds(crowd: SubscriberSet[S], subscriber: S) -> bool:
    """Whether the subscriber is in the crowd."""
    if isinstance(crowd, list):
        return subscriber in crowd
    if isinstance(crowd, Hamt):
        return crowd.get(subscriber) is not None
    return crowd is not None and (crowd is subscriber or crowd == subscriber)


def with_added(crowd: SubscriberSet[S], subscriber: S) -> SubscriberSet[S]:
    """The crowd with a subscriber that it does not hold yet."""
    if isinstance(crowd, Hamt):
        return crowd.put(subscriber, True)
    if isinstance(crowd, list):
        if len(crowd) < _FEW:
            return [*crowd, subscriber]
        many = only(subscriber, True)
        for each in crowd:
            many = many.put(each, True)
        return many
    if crowd is not None:
        return [crowd, subscriber]
    return subscriber if _plain(subscriber) else [subscriber]


def without(crowd: SubscriberSet[S], subscriber: S) -> SubscriberSet[S]:
    """The crowd without a subscriber that it holds, None if nobody is left."""
    if isinstance(crowd, Hamt):
        fewer = crowd.without(subscriber)
        assert fewer is not None
        return fewer if len(fewer) * 2 > _FEW else members(fewer)
    if isinstance(crowd, list):
        rest = crowd.copy()
        rest.remove(subscriber)
        if len(rest) == 1 and _plain(rest[0]):
            return rest[0]
        return rest if rest else None
    return None


def members(crowd: SubscriberSet[S]) -> list[S]:
    """The subscribers in the crowd."""
    found: list[S] = []
    _take(crowd, found)
    return found


def merged(crowds: list[SubscriberSet[S]]) -> list[S]:
    """The subscribers in any of these crowds, each once."""
    found: list[S] = []
    for crowd in crowds:
        _take(crowd, found)
    return found if len(crowds) < 2 else list(dict.fromkeys(found))


def _take(crowd: SubscriberSet[S], found: list[S]) -> None:
    """Append the subscribers in the crowd."""
    if isinstance(crowd, Hamt):
        for leaf in crowd.leaves():
            found.extend(leaf)
    elif isinstance(crowd, list):
        found.extend(crowd)
    elif crowd is not None:
        found.append(crowd)


def _plain(subscriber: S) -> bool:
    """Whether the subscriber, stored bare, could not be mistaken."""
    return subscriber is not None and not isinstance(subscriber, (list, Hamt))
