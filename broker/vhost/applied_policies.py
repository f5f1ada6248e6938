"""Sets the policies of a virtual host, and applies them to its queues and exchanges.

    set, clear --> Policies, Parameters --> store --> PolicyUpdate (in slices) --> apply_policies

An operator policy is stored as a parameter.
"""

from __future__ import annotations

from broker.agenda import Agenda
from broker.errors import PreconditionFailed
from broker.names import checked_name
from broker.queues.arguments import QueueArguments
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.policies import Policies, Policy, operator_policy_of
from broker.queues.queue import Queue
from broker.queues.replacing import replace_queue
from broker.routing.exchanges import Exchange
from broker.routing.planner import Planner
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined
from broker.store.values import is_same
from broker.stream.queue import StreamQueue
from broker.vhost.background import PolicyUpdate
from broker.vhost.journals import Journals
from broker.vhost.parameters import OPERATOR_POLICY, Parameters
from matching.bucket import members


class AppliedPolicies:
    """The part of a virtual host that changes its policies and parameters, and applies them."""

    def __init__(
        self,
        vhost: str,
        agenda: Agenda,
        store: Store,
        host: DeadLetterHost,
        exchanges: dict[str, Exchange],
        queues: dict[str, Queue],
        policies: Policies,
        parameters: Parameters,
        planner: Planner,
        journals: Journals,
    ) -> None:
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._host = host
        self._exchanges = exchanges
        self._queues = queues
        self._policies = policies
        self._parameters = parameters
        self._planner = planner
        self._journals = journals
        self._policy_update: PolicyUpdate | None = None

    def set_policy(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Add a policy, or replace the policy of the same name, and apply it in slices."""
        known = self._policies.by_name.get(policy.name)
        if known is not None and is_same(known.row, policy.row):
            # An earlier request has made this change, which may not be durable yet: wait for it.
            self._store.reply_when_all_durable(ticket)
            return
        checked_name("policy", policy.name)
        self._store.define(Defined(self._vhost, "policy", policy.name, policy.row), ticket)
        self.add_policy(policy)

    def clear_policy(self, name: str, ticket: Ticket | None = None) -> None:
        """Remove a policy, if it exists, and update the queues and exchanges in slices."""
        if self._policies.by_name.pop(name, None) is not None:
            self._store.define(Undefined(self._vhost, "policy", name), ticket)
            self._apply_all_policies()

    def add_policy(self, policy: Policy) -> None:
        """Add a policy and apply all policies in slices. The policy is not stored."""
        self._policies.by_name[policy.name] = policy
        self._apply_all_policies()

    def retire_plans(self) -> None:
        """Make all plans stale, so that each route gets a new plan with its next message."""
        self._planner.retire_all()

    def _apply_all_policies(self) -> None:
        queues, exchanges = list(self._queues.values()), list(self._exchanges.values())
        if self._policy_update is None or not self._policy_update.again(queues, exchanges):
            self._policy_update = PolicyUpdate(self, self._agenda, queues, exchanges)
            self._policy_update.run_first_slice()

    def apply_alternate(self, exchange: Exchange) -> None:
        """Give an exchange the alternate exchange of its policy, unless the exchange's own argument
        names an alternate exchange.
        """
        before = exchange.alternate
        if exchange.options.alternate is None:
            exchange.alternate = self._policies.alternate(exchange.name)
        if self._journals.topology is not None and exchange.alternate != before:
            self._journals.topology.declared_exchange(
                exchange.name, exchange.kind, exchange.alternate
            )

    def apply_policies(self, queue: Queue) -> None:
        """Give a queue the arguments of its policy, if the queue still exists.

        A plain queue that needs limits now is replaced by a LimitedQueue.
        """
        if self._queues.get(queue.name) is not queue:
            return
        given = queue.arguments.arguments
        effective = QueueArguments(
            queue.name, self._vhost, given, self._policies.arguments(queue.name, given), True
        )
        if isinstance(queue, (StreamQueue, LimitedQueue)):
            queue.update_arguments(effective)
        elif effective.needs_only_plain_queue:
            queue.arguments = effective
        else:
            replacement = LimitedQueue(
                self._vhost,
                queue.name,
                self._agenda,
                self._store,
                queue.durable,
                effective,
                self._host,
            )
            replace_queue(queue, replacement)
            self._queues[queue.name] = replacement
            for exchange in list(members(queue.bound_to)):
                if isinstance(exchange, Exchange):
                    exchange.redirect(queue, replacement)
            replacement.update_arguments(effective)
            replacement.touch()

    def set_operator_policy(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Add or replace an operator policy, which limits what other policies can set."""
        self._parameters.set(OPERATOR_POLICY, policy.name, policy.row, ticket)
        self._policies.operator_by_name[policy.name] = policy
        self._apply_all_policies()

    def add_parameter(self, component: str, name: str, value: object) -> None:
        """Add a stored parameter when the broker starts.

        Raises PreconditionFailed if the parameter is invalid.
        """
        self._parameters.restore(component, name, value)
        if component == OPERATOR_POLICY and isinstance(value, dict):
            self._policies.operator_by_name[name] = operator_policy_of(self._vhost, name, value)

    def set_parameter(
        self, component: str, name: str, value: object, ticket: Ticket | None = None
    ) -> bool:
        """Set a parameter. Return True if the parameter is new.

        Raises PreconditionFailed if the parameter is invalid.
        """
        fresh = (component, name) not in self._parameters.values
        if component == OPERATOR_POLICY:
            if not isinstance(value, dict):
                raise PreconditionFailed(f"operator policy '{name}': the value must be an object")
            self.set_operator_policy(operator_policy_of(self._vhost, name, value), ticket)
            return fresh
        return self._parameters.set(component, name, value, ticket)

    def clear_parameter(self, component: str, name: str, ticket: Ticket | None = None) -> bool:
        """Remove a parameter. Return True if the parameter existed.

        If the component is `operator_policy`, the operator policy of this name is removed too.
        """
        if not self._parameters.clear(component, name, ticket):
            return False
        if component == OPERATOR_POLICY:
            del self._policies.operator_by_name[name]
            self._apply_all_policies()
        return True
