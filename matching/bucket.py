"""Stores the subscribers of one pattern in the smallest container that holds them.

    None | subscriber | [two, or a few] | {many: None, ...}

Most patterns have one subscriber. A set or dict for each pattern (an empty set takes 216 bytes)
would take more memory than the rest of the index. A short list is the fastest to read; a dict
allows removal from many subscribers in constant time. A subscriber is hashable, so it is never a
list or dict itself. A subscriber that could be mistaken for a container (None, or a hashable
subclass of list or dict) is wrapped in a list. `with_added` and `without` return a bucket, which
the caller stores in place of the old bucket.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

S = TypeVar("S")

Bucket: TypeAlias = S | list[S] | dict[S, None] | None

#: The most subscribers in a list. A dict shrinks back to a list at half this size. (With 1 million
#: patterns of three words and 15 subscribers per answer, a compiled lookup takes 3.2 us with lists
#: and dicts, and 3.9 us if every container is a dict.)
_FEW: Final = 16


def holds(bucket: Bucket[S], subscriber: S) -> bool:
    """True if the subscriber is in the bucket."""
    if isinstance(bucket, (list, dict)):
        return subscriber in bucket
    return bucket is not None and (bucket is subscriber or bucket == subscriber)


def with_added(bucket: Bucket[S], subscriber: S) -> Bucket[S]:
    """Return the bucket plus a subscriber that it does not contain yet.

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
    """Return the bucket minus a subscriber that it contains. A list or dict may be changed in
    place.
    """
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
    """Return the subscribers in the bucket."""
    subscribers: list[S] = []
    take(bucket, subscribers)
    return subscribers


def take(bucket: Bucket[S], subscribers: list[S]) -> None:
    """Append the subscribers in the bucket to `subscribers`."""
    if isinstance(bucket, (list, dict)):
        subscribers.extend(bucket)
    elif bucket is not None:
        subscribers.append(bucket)


def size(bucket: Bucket[S]) -> int:
    """Return the number of subscribers in a bucket that is not empty."""
    return len(bucket) if isinstance(bucket, (list, dict)) else 1


def _plain(subscriber: S) -> bool:
    """True if the subscriber itself is a valid bucket: it is not None, a list or a dict."""
    return subscriber is not None and not isinstance(subscriber, (list, dict))


#: A dict of more than _LARGE subscribers is divided into _PARTS dicts, because a growing dict moves
#: all its entries at once (11 ms at 600,000 subscribers).
_LARGE: Final = 8_192
_PARTS: Final = 256
#: A dict uses the low bits of a hash first, so the part is chosen by higher bits.
_SHIFT: Final = 12


class PairCounts(Generic[S]):
    """The number of patterns of each subscriber; `shared` is the number of subscribers with several
    patterns.

    While `shared` is 0, no answer can contain a subscriber twice, and matchers skip the removal of
    duplicates. In the broker, `shared` is usually 0, because each subscriber is one binding.
    """

    __slots__ = ("_parts", "shared")

    def __init__(self) -> None:
        self._parts: list[dict[S, int]] = [{}]
        self.shared = 0

    def add(self, subscriber: S) -> None:
        """Add one to the subscriber's number of patterns."""
        part = self._part(subscriber)
        patterns = part.get(subscriber, 0)
        part[subscriber] = patterns + 1
        if patterns == 1:
            self.shared += 1
        elif patterns == 0 and len(part) > _LARGE and len(self._parts) == 1:
            self._divide()

    def remove(self, subscriber: S) -> None:
        """Subtract one from the subscriber's number of patterns."""
        part = self._part(subscriber)
        patterns = part[subscriber]
        if patterns == 1:
            del part[subscriber]
        else:
            part[subscriber] = patterns - 1
            if patterns == 2:
                self.shared -= 1

    def distinct(self, subscribers: list[S]) -> list[S]:
        """Return `subscribers` without duplicates."""
        return list(dict.fromkeys(subscribers))

    def _part(self, subscriber: S) -> dict[S, int]:
        parts = self._parts
        return parts[0] if len(parts) == 1 else parts[hash(subscriber) >> _SHIFT & _PARTS - 1]

    def _divide(self) -> None:
        whole = self._parts[0]
        parts: list[dict[S, int]] = [{} for _ in range(_PARTS)]
        for subscriber, patterns in whole.items():
            parts[hash(subscriber) >> _SHIFT & _PARTS - 1][subscriber] = patterns
        self._parts = parts
