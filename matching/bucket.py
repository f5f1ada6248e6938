"""The subscribers of one pattern: nobody, a single one stored bare, or several in a dict.

    None | subscriber | Crowd -> {subscriber: None, ...}

Most patterns have one subscriber, and a set or dict for each would cost more than all the rest of the index
(216 octets). Buckets are values: `joined` and `parted` return what to store in place of the old one.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

S = TypeVar("S")


class Crowd(Generic[S]):
    """Several subscribers of one pattern (or a single one that is None, which says nobody in a bucket)."""

    __slots__ = ("members",)

    def __init__(self, members: dict[S, None]) -> None:
        self.members = members


Bucket: TypeAlias = S | Crowd[S] | None


def holds(bucket: Bucket[S], subscriber: S) -> bool:
    """Whether the subscriber is in the bucket."""
    if isinstance(bucket, Crowd):
        return subscriber in bucket.members
    return bucket is not None and (bucket is subscriber or bucket == subscriber)


def joined(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """The bucket with a subscriber that it does not hold yet. A crowd is changed in place."""
    if isinstance(bucket, Crowd):
        bucket.members[subscriber] = None
        return bucket
    if bucket is not None:
        return Crowd({bucket: None, subscriber: None})
    return Crowd({subscriber: None}) if subscriber is None else subscriber


def parted(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """The bucket without a subscriber that it holds. A crowd is changed in place."""
    if not isinstance(bucket, Crowd):
        return None
    del bucket.members[subscriber]
    if len(bucket.members) > 1:
        return bucket
    for left in bucket.members:
        return bucket if left is None else left
    return None


def members(bucket: Bucket[S]) -> list[S]:
    """The subscribers in the bucket."""
    if isinstance(bucket, Crowd):
        return list(bucket.members)
    return [] if bucket is None else [bucket]


def take(bucket: Bucket[S], found: list[S]) -> None:
    """Append the subscribers in the bucket."""
    if isinstance(bucket, Crowd):
        found.extend(bucket.members)
    elif bucket is not None:
        found.append(bucket)


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
