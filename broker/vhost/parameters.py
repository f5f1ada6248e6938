"""Runtime parameters: values that operators store under a component and a name.

Shovels and upstreams of federation are parameters, as in RabbitMQ (trellis/bridge/). Parameters of
other components have no effect, and are kept for tools that set and read them. Operator policies
are parameters of the component `operator_policy`, as in RabbitMQ, and have an effect
(broker/queues/policies.py). Global parameters have the component "" and belong to the virtual host
"/".
"""

from __future__ import annotations

from typing import Final

from broker.errors import NotAllowed, PreconditionFailed
from broker.names import checked_name
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined
from broker.store.values import dump, is_same

#: The component of global parameters.
GLOBAL: Final = ""
#: The global parameter with the name of the cluster.
CLUSTER_NAME: Final = "cluster_name"
#: The component of operator policies.
OPERATOR_POLICY: Final = "operator_policy"
#: Largest number of parameters of one virtual host.
PARAMETERS_MAX: Final = 10_000
#: Largest size in bytes of one stored parameter (component, name and value), and of all parameters
#: of one virtual host.
PARAMETER_BYTES_MAX: Final = 64 << 10
PARAMETERS_BYTES_MAX: Final = 16 << 20


class Parameters:
    """The parameters of one virtual host, by component and name."""

    def __init__(self, vhost: str, store: Store) -> None:
        self.values: dict[tuple[str, str], object] = {}
        #: Size in bytes of each parameter, and of all parameters.
        self._sizes: dict[tuple[str, str], int] = {}
        self.size = 0
        self._vhost = vhost
        self._store = store

    def set(self, component: str, name: str, value: object, ticket: Ticket | None = None) -> bool:
        """Set a parameter, and store it. Return True if the parameter is new.

        Raises PreconditionFailed if a name is invalid or the value too large, and NotAllowed if the
        virtual host has too many parameters.
        """
        key = (component, name)
        fresh = key not in self.values
        row = _row(component, name, value)
        if not fresh and is_same(row, _row(component, name, self.values[key])):
            # An earlier request has made this change, which may not be durable yet: wait for it.
            self._store.reply_when_all_durable(ticket)
            return False
        self.check(component, name)
        if fresh and len(self.values) >= PARAMETERS_MAX:
            raise NotAllowed(
                f"cannot set parameter '{name}' of component '{component}': vhost "
                f"'{self._vhost}' has {PARAMETERS_MAX} parameters, which is the limit; "
                "delete some of them first"
            )
        size = len(dump(row))
        if size > PARAMETER_BYTES_MAX:
            raise PreconditionFailed(
                f"cannot set parameter '{name}' of component '{component}': the parameter has "
                f"{size} bytes as ASCII JSON, and the limit is {PARAMETER_BYTES_MAX} bytes"
            )
        if self.size - self._sizes.get(key, 0) + size > PARAMETERS_BYTES_MAX:
            raise NotAllowed(
                f"cannot set parameter '{name}' of component '{component}': the parameters of "
                f"vhost '{self._vhost}' would have more than {PARAMETERS_BYTES_MAX} bytes, which "
                "is the limit; delete some of them first"
            )
        self._store.define(Defined(self._vhost, "parameter", _stored(component, name), row), ticket)
        self._keep(key, value, size)
        return fresh

    def restore(self, component: str, name: str, value: object) -> None:
        """Add a stored parameter when the broker starts. The limits do not apply to it."""
        self._keep((component, name), value, len(dump(_row(component, name, value))))

    def _keep(self, key: tuple[str, str], value: object, size: int) -> None:
        self.size += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.values[key] = value

    def check(self, component: str, name: str) -> None:
        """Raise PreconditionFailed if the component or the name is invalid."""
        if component != GLOBAL:
            checked_name("component", component)
        if "/" in component:
            raise PreconditionFailed(
                f"invalid component '{component}' of parameter '{name}': it must not contain '/'"
            )
        checked_name("parameter", name)

    def clear(self, component: str, name: str, ticket: Ticket | None = None) -> bool:
        """Remove a parameter; return True if it existed."""
        if self.values.pop((component, name), None) is None:
            return False
        self.size -= self._sizes.pop((component, name))
        self._store.define(Undefined(self._vhost, "parameter", _stored(component, name)), ticket)
        return True


def _row(component: str, name: str, value: object) -> dict[str, object]:
    return {"component": component, "name": name, "value": value}


def _stored(component: str, name: str) -> str:
    """Return the name of the parameter's definition in the store."""
    return f"{component}/{name}"
