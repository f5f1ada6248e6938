"""The deadlines of links, grouped in slots of time: a check examines only links that may be due.

    slot 41 -> link, link          slots that have come: the check examines each of their links
    slot 42 -> link
    ...
    slot 401 -> link, link, ...    later slots: no work

A link waits in one slot. If its deadline moves earlier, the link moves to an earlier slot. If its
deadline moves later, the link stays in its slot. When this slot comes, the check finds that the
link is not due, and moves it to the slot of its present deadline. So an input of a client, which
moves its keep-alive deadline later, costs no work here. Each link knows its slot and its index in
the slot, so that a closed link is removed without a search. An entry costs a pointer and two
integers: about 25 bytes for each link.
"""

from __future__ import annotations

import time
from typing import Final

from mypy_extensions import i64

from trellis.server.turn_link import TurnLink

#: Length of a slot in ms; shorter than the time between two checks. Of the links that a check
#: examines, those in the last slot may have deadlines that are up to this time in the future.
SLOT_MS: Final[i64] = 250
#: Largest number of links that a check examines in one turn of the event loop, and the seconds
#: after which the remaining links wait for the next turn. If many clients vanish at once, the
#: broker must end a connection for each of their links.
SLICE_LINKS: Final = 200
SLICE_SECONDS: Final = 0.002


class LinkDeadlines:
    """All links with a deadline, by the slot in which the deadline is. Times are in ms."""

    def __init__(self) -> None:
        #: Links by slot number; a slot without links has no entry.
        self._slots: dict[int, list[TurnLink]] = {}
        #: Numbers of the slots that have come, and may still have links.
        self._come: list[int] = []
        #: Number of the last slot that has come.
        self._last: i64 = 0

    def enter(self, link: TurnLink, when: i64) -> None:
        """Make the first check at or after the time `when` (above 0) examine the link.

        Do nothing if the link waits for an earlier check already.
        """
        slot = max(_slot_of(when), self._last + 1)
        if link.slot > 0:
            if link.slot <= slot:
                return
            self.leave(link)
        links = self._slots.get(slot)
        if links is None:
            links = self._slots[slot] = []
        link.slot = slot
        link.slot_index = len(links)
        links.append(link)

    def leave(self, link: TurnLink) -> None:
        """Remove the link, if it waits for a check."""
        slot = link.slot
        if slot == 0:
            return
        link.slot = 0
        links = self._slots[slot]
        last = links.pop()
        if last is not link:
            links[link.slot_index] = last
            last.slot_index = link.slot_index
        elif not links:
            del self._slots[slot]

    def begin_check(self, now: i64) -> None:
        """Begin a check: the calls of `advance` examine all links in slots up to that of `now`.

        Some links in the slot of `now` have deadlines that are up to SLOT_MS later than `now`.
        """
        slots, last = self._slots, _slot_of(now)
        if last - self._last <= len(slots):
            number = self._last + 1
            while number <= last:
                if number in slots:
                    self._come.append(number)
                number += 1
        else:
            # After a pause there may be more slots to pass than slots with links.
            self._come += [number for number in slots if number <= last]
        self._last = max(self._last, last)

    def advance(self, now: i64) -> bool:
        """Do one slice of a check: call `advance` of links that this check must examine.

        Each examined link enters the slot of its next deadline. Return True if the check must
        examine further links.
        """
        end = time.perf_counter() + SLICE_SECONDS
        for _ in range(SLICE_LINKS):
            link = self._pop()
            if link is None:
                return False
            link.advance(int(now))
            when = link.next_deadline()
            if when > 0:
                self.enter(link, when)
            if time.perf_counter() > end:
                break
        return True

    def _pop(self) -> TurnLink | None:
        """Remove a link that this check has to examine, and return it; None if no link remains."""
        come, slots = self._come, self._slots
        while come:
            links = slots.get(come[-1])
            if links is not None:
                link = links[-1]
                self.leave(link)
                return link
            come.pop()
        return None


def _slot_of(when: i64) -> i64:
    """Return the number of the slot that contains the time `when`; a slot includes its end."""
    return (when + SLOT_MS - 1) // SLOT_MS
