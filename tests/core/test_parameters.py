"""Runtime parameters of a virtual host: each parameter and the sum of all have a limit in bytes."""

from __future__ import annotations

import pytest

from broker.errors import NotAllowed, PreconditionFailed
from broker.queues.policies import policy_of
from broker.vhost.parameters import PARAMETER_BYTES_MAX, PARAMETERS_BYTES_MAX
from tests.clients import World


def test_a_parameter_that_is_too_large_is_refused_and_the_old_value_stays() -> None:
    parameters = World().vhost.parameters
    parameters.set("c", "n", "small")
    size = parameters.size
    with pytest.raises(PreconditionFailed, match="cannot set parameter 'n' of component 'c'"):
        parameters.set("c", "n", "x" * PARAMETER_BYTES_MAX)
    assert (parameters.values["c", "n"], parameters.size) == ("small", size)


def test_all_parameters_together_have_a_limit_until_some_are_deleted() -> None:
    parameters = World().vhost.parameters
    value = "x" * (PARAMETER_BYTES_MAX - 100)
    while parameters.size + PARAMETER_BYTES_MAX <= PARAMETERS_BYTES_MAX:
        parameters.set("c", f"n{len(parameters.values)}", value)
    with pytest.raises(NotAllowed, match=r"the parameters of vhost '/' would have more than"):
        parameters.set("c", "one more", value)
    full = parameters.size
    assert parameters.set("c", "n0", "y" * len(value)) is False
    assert parameters.size == full
    assert parameters.clear("c", "n0")
    assert parameters.set("c", "new", value)
    for component, name in list(parameters.values):
        parameters.clear(component, name)
    assert parameters.size == 0


@pytest.mark.parametrize(
    ("before", "after"), [(1, True), (True, 1), (1, 1.0), ({"a": [1]}, {"a": [True]}), (0, False)]
)
def test_a_value_of_another_type_is_another_value(before: object, after: object) -> None:
    parameters = World().vhost.parameters
    assert parameters.set("c", "n", before)
    assert not parameters.set("c", "n", after)
    assert repr(parameters.values["c", "n"]) == repr(after)


def test_a_policy_with_a_value_of_another_type_is_another_policy() -> None:
    vhost = World().vhost
    for value in (2, 2.0):
        row = {"pattern": "", "definition": {"max-length": 5, "ha-params": value}}
        vhost.applied_policies.set_policy(policy_of("/", "p", row))
        assert repr(vhost.policies.by_name["p"].definition["ha-params"]) == repr(value)
