"""Tests of the list of queue names, which a scrape reads while queues are declared and deleted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.vhost.private_queues import new_inbox
from broker.vhost.queue_names import GROUPS_MAX, QueueNames
from tests.clients import World


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80), st.integers(0, 80))
def test_walk_while_queues_come_and_go(changes: list[tuple[bool, int]], first: int) -> None:
    """A walk over the names must yield each name that exists during the whole walk.

    The walk must yield each name at most once, and only names that have existed.
    """
    names = QueueNames()
    model: set[str] = set()

    def change(added: bool, number: int) -> None:
        name = f"q{number}"
        if added:
            names.add(name)
            model.add(name)
        else:
            names.remove(name)
            model.discard(name)

    for added, number in changes[:first]:
        change(added, number)
    ever, always = set(model), set(model)
    walked: list[str] = []
    later = iter(changes[first:])
    for group in names.groups():
        walked += group
        change(*next(later, (True, 0)))
        ever |= model
        always &= model
    assert always <= set(walked) <= ever
    assert len(walked) == len(set(walked))
    assert sorted(name for group in names.groups() for name in group) == sorted(model)


def test_a_group_is_a_small_part_of_many_names() -> None:
    names = QueueNames()
    for number in range(50_000):
        names.add(f"orders.{number}")
    sizes = [len(group) for group in names.groups()]
    assert sum(sizes) == 50_000
    assert max(sizes) < 2 * 50_000 / GROUPS_MAX


def test_declared_and_deleted_queues() -> None:
    world = World()
    declarations = world.vhost.declarations

    def listed() -> list[str]:
        return sorted(name for group in declarations.queue_names.groups() for name in group)

    world.vhost.declare_queue("one")
    world.vhost.declare_queue("two")
    world.vhost.declare_queue("two")
    assert listed() == sorted(declarations.queues) == ["one", "two"]
    world.vhost.delete_queue(world.vhost.queue("one"))
    assert listed() == sorted(declarations.queues) == ["two"]
    new_inbox(world.vhost, "session", False, 10)
    assert [*declarations.inbox_names.groups()] == [["session"]]
