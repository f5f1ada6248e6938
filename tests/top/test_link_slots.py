"""Tests of the slots in which links wait for a check of their deadline.

A model examines all links in each check. The links have no clients; the tests set the clock.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Final

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.top.clocks import TURNS, StillLoop, in_still_loop, turns
from tests.top.test_link_deadlines import CHECK_MS, Served
from trellis.server.link_deadlines import SLICE_LINKS, LinkDeadlines
from trellis.server.turn import DEADLINE_INTERVAL
from trellis.server.turn_link import TurnLink

#: Number of links in the tests of scale.
MANY: Final = 100_000


class TimedLink(TurnLink):
    """A link whose client must send input every `limit` ms, and whose end is recorded."""

    #: Number of times that a check examined a link.
    looks = 0

    def __init__(self, limit: int, now: int) -> None:
        super().__init__()
        self.limit = limit
        self.heard_at = now
        self.deadline = now + limit
        self.ended_at = 0

    def advance(self, now: int) -> None:
        TimedLink.looks += 1
        if 0 < self.deadline <= now:
            self.deadline = self.heard_at + self.limit
            if self.deadline <= now:
                self.ended_at, self.deadline = now, 0

    def next_deadline(self) -> int:
        return self.deadline

    def excuse(self, pause: int) -> None:
        self.heard_at += pause


#: One step of a random history: its kind, the number of a link, and a duration in ms.
STEP: Final = st.tuples(
    st.sampled_from(["open", "input", "input", "sooner", "later", "close", "check", "check"]),
    st.integers(0, 20),
    st.integers(0, 5_000) | st.integers(0, 100_000),
)


@examples(max_examples=100, deadline=None)
@given(st.lists(STEP, max_size=150), st.integers(1, 10**9))
def test_each_link_ends_in_the_check_in_which_a_walk_over_all_links_ends_it(
    steps: list[tuple[str, int, int]], now: int
) -> None:
    deadlines = LinkDeadlines()
    links: list[TimedLink] = []
    model: list[TimedLink] = []
    for kind, number, ms in steps:
        chosen = number % len(links) if links else -1
        if kind == "open":
            links.append(TimedLink(ms + 1, now))
            model.append(TimedLink(ms + 1, now))
            deadlines.enter(links[-1], links[-1].deadline)
        elif kind == "check":
            now += CHECK_MS + ms
            deadlines.begin_check(now)
            while deadlines.advance(now):
                pass
            for one in model:
                one.advance(now)
        elif chosen >= 0 and kind == "close":
            deadlines.leave(links[chosen])
            del links[chosen], model[chosen]
        elif chosen >= 0 and not model[chosen].ended_at:
            link = links[chosen]
            for one in (link, model[chosen]):
                if kind == "input":
                    one.heard_at = now
                elif kind == "later":
                    one.deadline += ms
                else:
                    one.deadline = max(1, one.deadline - ms)
            if kind == "sooner":
                deadlines.enter(link, link.deadline)
        assert [link.ended_at for link in links] == [one.ended_at for one in model]
        # Only open links wait, each at its index, and in no slot that has passed.
        waiting = [link for group in deadlines._slots.values() for link in group]
        assert {id(link) for link in waiting} == {id(one) for one in links if one.slot}
        assert len(waiting) == len({id(link) for link in waiting})
        for slot, group in deadlines._slots.items():
            assert group and slot > deadlines._last
            assert [(one.slot, one.slot_index) for one in group] == [
                (slot, at) for at in range(len(group))
            ]


def test_a_check_of_100_000_idle_links_looks_at_few_of_them() -> None:
    async def steps(loop: StillLoop) -> None:
        turn = Served(loop).turn
        now = int(loop.now * 1000)
        # Keep-alive 60 s: a client may be silent for 90 s, and sends PINGREQ after 60 s.
        links = [TimedLink(90_000, now - 90_000 * n // MANY) for n in range(MANY)]
        for link in links:
            turn.add_link(link, link.deadline)
        check = loop.create_task(turn.check_deadlines())
        await turns()
        looks = []
        for _ in range(20):
            now += CHECK_MS
            for link in links:
                if link.deadline <= now:
                    link.heard_at = now - 30_000
            TimedLink.looks = 0
            loop.now += DEADLINE_INTERVAL
            await turns(10)
            looks.append(TimedLink.looks)
        check.cancel()
        assert not any(link.ended_at for link in links)
        # At first, each link is examined every 90 s: about 560 in a check, and the rest of a slot.
        assert min(looks) > 400 and max(looks) < 1_200

    in_still_loop(steps)


def test_100_000_links_whose_deadlines_come_at_once_end_in_slices() -> None:
    async def steps(loop: StillLoop) -> None:
        turn = Served(loop).turn
        links = [TimedLink(1_000, int(loop.now * 1000)) for _ in range(MANY)]
        for link in links:
            turn.add_link(link, link.deadline)
        check = loop.create_task(turn.check_deadlines())
        await turns()
        for _ in range(2):
            loop.now += DEADLINE_INTERVAL
            TimedLink.looks, most, idle = 0, 0, 0
            while idle < TURNS:
                before = TimedLink.looks
                await asyncio.sleep(0)
                looks = TimedLink.looks - before
                most, idle = max(most, looks), 0 if looks else idle + 1
        check.cancel()
        assert TimedLink.looks == MANY and 0 < most <= SLICE_LINKS
        assert all(link.ended_at for link in links)

    in_still_loop(steps)


def test_a_link_that_has_left_is_not_referred_to() -> None:
    deadlines = LinkDeadlines()
    links = [TimedLink(90_000, 1_000) for _ in range(3)]
    for link in links:
        deadlines.enter(link, link.deadline)
    left = weakref.ref(links[1])
    deadlines.leave(links.pop(1))
    del link
    assert left() is None
    for link in links:
        deadlines.leave(link)
        deadlines.leave(link)  # A second leave() of the same link has no effect.
    assert deadlines._slots == {}


def test_an_entry_takes_a_pointer_for_each_link() -> None:
    links = [TimedLink(90_000 + n, 1_000) for n in range(10_000)]
    deadlines = LinkDeadlines()
    for link in links:
        deadlines.enter(link, link.deadline)
    size = sum(group.__sizeof__() for group in deadlines._slots.values())
    assert (size + deadlines._slots.__sizeof__()) / len(links) < 10
