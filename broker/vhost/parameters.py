"""Runtime parameters: values that operators store under a component and a name.

Parameters of RabbitMQ's plugins (federation, shovel) have no effect. They are kept, so that tools
that set and read them work. Operator policies are parameters of the component `operator_policy`, as
in RabbitMQ, and have an effect (broker/queues/policies.py). Global parameters have the component ""
and belong to the virtual host "/".
"""

from __future__ import annotations

from typing import Final

from broker.errors import NotAllowed, PreconditionFailed
from broker.names import checked_name
from broker.store.contract import Defined, Store, Ticket, Undefined

#: The component of global parameters.
GLOBAL: Final = ""
#: The global parameter with the name of the cluster.
CLUSTER_NAME: Final = "cluster_name"
#: The component of operator policies.
OPERATOR_POLICY: Final = "operator_policy"
#: Largest number of parameters of one virtual host.
PARAMETERS_MAX: Final = 10_000


class Parameters:
    """The parameters of one virtual host, by component and name."""

    def __init__(self, vhost: str, store: Store) -> None:
        self.values: dict[tuple[str, str], object] = {}
        self._vhost = vhost
        self._store = store

    def set(self, component: str, name: str, value: object, ticket: Ticket | None = None) -> bool:
        """Set a parameter, and store it. Return True if it is new.

        Raise PreconditionFailed if a name is invalid, and NotAllowed if there are too many.
        """
        key = (component, name)
        fresh = key not in self.values
        if not fresh and self.values[key] == value:
            return False
        self.check(component, name)
        if fresh and len(self.values) >= PARAMETERS_MAX:
            raise NotAllowed(
                f"cannot set parameter '{name}' of component '{component}': vhost "
                f"'{self._vhost}' has {PARAMETERS_MAX} parameters, which is the limit"
            )
        row: dict[str, object] = {"component": component, "name": name, "value": value}
        self._store.append(Defined(self._vhost, "parameter", _stored(component, name), row), ticket)
        self.values[key] = value
        return fresh

    def check(self, component: str, name: str) -> None:
        """Raise PreconditionFailed if the component or the name is invalid."""
        if component != GLOBAL:
            checked_name("component", component)
        if "/" in component:
            raise PreconditionFailed(f"invalid component '{component}': it contains '/'")
        checked_name("parameter", name)

    def clear(self, component: str, name: str, ticket: Ticket | None = None) -> bool:
        """Remove a parameter; return True if it existed."""
        if self.values.pop((component, name), None) is None:
            return False
        self._store.append(Undefined(self._vhost, "parameter", _stored(component, name)), ticket)
        return True


def _stored(component: str, name: str) -> str:
    """Return the name of the parameter's definition in the store."""
    return f"{component}/{name}"
