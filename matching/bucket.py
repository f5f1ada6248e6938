"""The subscribers of one pattern, in the smallest thing that holds so many.

    None | subscriber | [two, or a few] | {many: None, ...}

Most patterns have one subscriber, and a set or dict for each would cost more than all the rest of
the index (216 octets). A few are read fastest from a list, and from many a dict can remove one.
Lists and dicts cannot be hashed, so neither is ever a subscriber; who subscribes None, or a list or
dict of an own hashable kind, gets a list around it. Buckets are values: `joined` and `parted`
return what to store in place of the old one.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

S = TypeVar("S")

Bucket: TypeAlias = S | list[S] | dict[S, None] | None

#: What a list holds at most; a dict becomes a list again at half of it. (1M three-word patterns, 15
#: subscribers a lookup: 3.2 us compiled with lists, 3.9 us with dicts alone.)
_FEW: Final = 16


def holds(bucket: Bucket[S], subscriber: S) -> bool:
    """Whether the subscriber is in the bucket."""
    if isinstance(bucket, (list, dict)):
        return subscriber in bucket
    return bucket is not None and (bucket is subscriber or bucket == subscriber)


def with_added(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """The bucket with a subscriber that it does not hold yet.

    A list or dict may be changed in place.
    """
    if isinstance(bucket, list):
        bucket.append(subscriber)
        return bucket if len(bucket) <= _FEW else dict.fromkeys(bucket)
    if isinstance(bucket, dict):
        bucket[subscriber] = None
        return bucket
    if bucket is not None:
        return [bucket, subscriber]
    return subscriber if _plain(subscriber) else [subscriber]


def without(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """The bucket without a subscriber that it holds. A list or dict may be changed in place."""
    if isinstance(bucket, list):
        bucket.remove(subscriber)
        if len(bucket) > 1:
            return bucket
        if not bucket:
            return None
        return bucket[0] if _plain(bucket[0]) else bucket
    if isinstance(bucket, dict):
        del bucket[subscriber]
        return bucket if len(bucket) * 2 > _FEW else list(bucket)
    return None


def members(bucket: Bucket[S]) -> list[S]:
    """The subscribers in the bucket."""
    found: list[S] = []
    take(bucket, found)
    return found


def take(bucket: Bucket[S], found: list[S]) -> None:
    """Append the subscribers in the bucket."""
    if isinstance(bucket, (list, dict)):
        found.extend(bucket)
    elif bucket is not None:
        found.append(bucket)


def size(bucket: Bucket[S]) -> int:
    """How many subscribers are in a bucket that is not empty."""
    return len(bucket) if isinstance(bucket, (list, dict)) else 1


def _plain(subscriber: S) -> bool:
    """Whether the subscriber, stored bare, could not be mistaken."""
    return subscriber is not None and not isinstance(subscriber, (list, dict))


#: A dict that grows moves all it holds at once (11 ms at 600,000 subscribers), so one that is large
#: is divided.
_LARGE: Final = 8_192
_PARTS: Final = 256
#: A dict looks at the low bits of a hash first; so others choose the part.
_SHIFT: Final = 12


class PairCounts(Generic[S]):
    """Under how many patterns each subscriber stands; `shared` of them stand under several.

    While `shared` is 0 no answer can name a subscriber twice and none is searched for it. The
    broker's subscribers are bindings, one a pattern, so that is its usual state.
    """

    __slots__ = ("_parts", "shared")

    def __init__(self) -> None:
        self._parts: list[dict[S, int]] = [{}]
        self.shared = 0

    def add(self, subscriber: S) -> None:
        """Count one pattern more."""
        part = self._part(subscriber)
        patterns = part.get(subscriber, 0)
        part[subscriber] = patterns + 1
        if patterns == 1:
            self.shared += 1
        elif patterns == 0 and len(part) > _LARGE and len(self._parts) == 1:
            self._divide()

    def remove(self, subscriber: S) -> None:
        """Count one pattern less."""
        part = self._part(subscriber)
        patterns = part[subscriber]
        if patterns == 1:
            del part[subscriber]
        else:
            part[subscriber] = patterns - 1
            if patterns == 2:
                self.shared -= 1

    def distinct(self, found: list[S]) -> list[S]:
        """Each of these subscribers once."""
        return list(dict.fromkeys(found))

    def _part(self, subscriber: S) -> dict[S, int]:
        parts = self._parts
        return parts[0] if len(parts) == 1 else parts[hash(subscriber) >> _SHIFT & _PARTS - 1]

    def _divide(self) -> None:
        whole = self._parts[0]
        parts: list[dict[S, int]] = [{} for _ in range(_PARTS)]
        for subscriber, patterns in whole.items():
            parts[hash(subscriber) >> _SHIFT & _PARTS - 1][subscriber] = patterns
        self._parts = parts
