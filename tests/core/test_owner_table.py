"""Tests of the table of values by owner: which value it evicts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.owner_table import OwnerTable

OWNERS, NAMES, MOST = "abcd", "mnopqrst", 12


class Model:
    """A model of OwnerTable: all values in one list, in the order of their last `put`."""

    def __init__(self) -> None:
        self.values: list[tuple[str, str, int]] = []

    def names(self, owner: str) -> list[str]:
        return [name for one, name, _ in self.values if one == owner]

    def remove(self, owner: str, name: str) -> None:
        self.values = [value for value in self.values if value[:2] != (owner, name)]

    def evictable(self) -> set[tuple[str, str]]:
        """Return (owner, name of the oldest value) of each owner that has the most values."""
        most = max(len(self.names(owner)) for owner in OWNERS)
        return {(owner, self.names(owner)[0]) for owner in OWNERS if len(self.names(owner)) == most}


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "remove", "remove_owner"]),
            st.sampled_from(OWNERS),
            st.sampled_from(NAMES),
        ),
        max_size=120,
    )
)
def test_a_full_table_evicts_the_oldest_value_of_an_owner_with_the_most_values(
    steps: list[tuple[str, str, str]],
) -> None:
    table: OwnerTable[int] = OwnerTable()
    model = Model()
    for number, (step, owner, name) in enumerate(steps):
        if step == "put":
            table.put(owner, name, number)
            model.remove(owner, name)
            model.values.append((owner, name, number))
        elif step == "remove":
            table.remove(owner, name)
            model.remove(owner, name)
        else:
            assert table.remove_owner(owner) == model.names(owner)
            model.values = [value for value in model.values if value[0] != owner]
        if table.size > MOST:
            owners = {value[0] for value in model.values}
            evicted = table.evict()
            assert evicted in model.evictable()
            assert len(model.names(evicted[0])) > MOST // len(owners)
            model.remove(*evicted)
        assert table.size == len(model.values)
        assert {
            (owner, name, value)
            for owner, values in table.by_owner.items()
            for name, value in values.items()
        } == set(model.values)
        for owner in OWNERS:
            assert list(table.by_owner.get(owner, ())) == model.names(owner)
            for name in NAMES:
                present = {value[2] for value in model.values if value[:2] == (owner, name)}
                assert {table.get(owner, name)} - {None} == present


def test_of_owners_with_one_value_each_the_least_recent_one_loses_it() -> None:
    table: OwnerTable[int] = OwnerTable()
    for owner in "abca":
        table.put(owner, "n", 1)
    assert [table.evict() for _ in range(3)] == [("b", "n"), ("c", "n"), ("a", "n")]
    assert table.size == 0 and table.by_owner == {}
