"""The subscribers of one pattern: nobody, a single one stored bare, or several in a dict.

    None | subscriber | {subscriber: None, ...}

Most patterns have one subscriber, and a set or dict for each would cost more than all the rest of the index
(216 octets). Buckets are values: `joined` and `parted` return what to store in place of the old one. Dicts cannot
be hashed, so a bucket that is one is no subscriber; who subscribes None or an own hashable kind of dict gets a
dict around it.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

S = TypeVar("S")

Bucket: TypeAlias = S | dict[S, None] | None


def holds(bucket: Bucket[S], subscriber: S) -> bool:
    """Whether the subscriber is in the bucket."""
    if isinstance(bucket, dict):
        return subscriber in bucket
    return bucket is not None and (bucket is subscriber or bucket == subscriber)


def joined(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """The bucket with a subscriber that it does not hold yet. A dict is changed in place."""
    if isinstance(bucket, dict):
        bucket[subscriber] = None
        return bucket
    if bucket is not None:
        return {bucket: None, subscriber: None}
    return subscriber if _plain(subscriber) else {subscriber: None}


def parted(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """The bucket without a subscriber that it holds. A dict is changed in place."""
    if not isinstance(bucket, dict) or len(bucket) == 1:
        return None
    del bucket[subscriber]
    left = next(iter(bucket))
    return left if len(bucket) == 1 and _plain(left) else bucket


def members(bucket: Bucket[S]) -> list[S]:
    """The subscribers in the bucket."""
    found: list[S] = []
    take(bucket, found)
    return found


def take(bucket: Bucket[S], found: list[S]) -> None:
    """Append the subscribers in the bucket."""
    if isinstance(bucket, dict):
        for subscriber in bucket:
            found.append(subscriber)
    elif bucket is not None:
        found.append(bucket)


def _plain(subscriber: S) -> bool:
    """Whether the subscriber, stored bare, could not be mistaken."""
    return subscriber is not None and not isinstance(subscriber, dict)


class Tally(Generic[S]):
    """Under how many patterns each subscriber stands; `shared` of them stand under several.

    While `shared` is 0 no answer can name a subscriber twice and none is searched for it. The broker's subscribers
    are bindings, one a pattern, so that is its usual state.
    """

    __slots__ = ("_patterns", "shared")

    def __init__(self) -> None:
        self._patterns: dict[S, int] = {}
        self.shared = 0

    def add(self, subscriber: S) -> None:
        """Count one pattern more."""
        patterns = self._patterns.get(subscriber, 0)
        self._patterns[subscriber] = patterns + 1
        if patterns == 1:
            self.shared += 1

    def remove(self, subscriber: S) -> None:
        """Count one pattern less."""
        patterns = self._patterns[subscriber]
        if patterns == 1:
            del self._patterns[subscriber]
        else:
            self._patterns[subscriber] = patterns - 1
            if patterns == 2:
                self.shared -= 1

    def distinct(self, found: list[S]) -> list[S]:
        """Each of these subscribers once. May return the list that it got."""
        return list(dict.fromkeys(found)) if self.shared and len(found) > 1 else found
