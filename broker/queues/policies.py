"""Policies: arguments for all queues and exchanges whose name matches a pattern.

Operators set policies, in RabbitMQ's format. If several policies match a name, only the policy with
the highest priority applies. If several matching policies have this priority, the policy whose name
sorts first applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from broker.compatibility import POLICY_KEYS
from broker.errors import InvalidArgument, PreconditionFailed
from broker.names import nearest
from broker.patterns import NAME_MAX, bounded_pattern
from broker.queues.arguments import BY_POLICY, EMPTY, QueueArguments

ALTERNATE: Final = "alternate-exchange"
#: The keys of a policy that have an effect.
EFFECTIVE_KEYS: Final = frozenset(
    [*BY_POLICY, ALTERNATE, "federation-upstream", "federation-upstream-set"]
)
#: The values that `apply-to` of a policy may have.
APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
#: The values of `apply-to` that include exchanges.
_EXCHANGE_KINDS: Final = ("all", "exchanges")
#: The values of `apply-to` of operator policies, and the keys that operator policies cannot set.
OPERATOR_APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams")
_NOT_FOR_OPERATORS: Final = ("dead-letter-exchange", "dead-letter-routing-key", ALTERNATE)
#: The highest priority of a policy; the lowest priority is the negative of this number.
PRIORITY_MAX: Final = 1 << 31
#: An error shows this number of characters of an invalid key or value at most.
SHOWN: Final = 100


class Policy:
    """One policy, checked: a pattern, and arguments for the queues and exchanges it matches.

    `definition` is the definition as the operator wrote it. Raises PreconditionFailed if a value is
    invalid.
    """

    def __init__(
        self,
        vhost: str,
        name: str,
        pattern: str,
        apply_to: str,
        priority: int,
        definition: Mapping[str, object],
    ) -> None:
        thing = f"policy '{name}' in vhost '{vhost}'"
        try:
            self._pattern = bounded_pattern(pattern, re.DOTALL)
        except PreconditionFailed as error:
            raise PreconditionFailed(f"{thing}: {error}") from None
        if apply_to not in APPLY_TO:
            raise PreconditionFailed(
                f"{thing}: 'apply-to' is '{apply_to}', not one of {', '.join(APPLY_TO)}"
            )
        if abs(priority) > PRIORITY_MAX:
            raise PreconditionFailed(
                f"{thing}: the priority {priority} is outside -{PRIORITY_MAX} to {PRIORITY_MAX}"
            )
        if not definition:
            raise PreconditionFailed(
                f"{thing}: the definition is empty; set at least one key, such as 'message-ttl'"
            )
        for key in definition:
            # RabbitMQ's other keys are kept, and have no effect.
            if key not in EFFECTIVE_KEYS and key not in POLICY_KEYS:
                raise PreconditionFailed(
                    f"{thing}: unknown key '{key[:SHOWN]}'; the nearest is "
                    f"{nearest(key, sorted(POLICY_KEYS))}; "
                    f"known keys are {', '.join([*BY_POLICY, ALTERNATE])}"
                )
        alternate = definition.get(ALTERNATE)
        if alternate is not None and not isinstance(alternate, str):
            raise PreconditionFailed(f"{thing}: {_shown(ALTERNATE, alternate)}: must be a string")
        self.name = name
        self.pattern = pattern
        self.apply_to = apply_to
        self.priority = priority
        self.definition = definition
        #: The keys of `definition` that are about queues, as queue arguments.
        self.arguments = {
            BY_POLICY[key]: value for key, value in definition.items() if key in BY_POLICY
        }
        self.alternate = alternate
        try:
            _check_arguments(name, vhost, self.arguments)
        except InvalidArgument as invalid:
            raise PreconditionFailed(f"{thing}: {_fault(invalid, definition)}") from None

    def applies_to(self, name: str, kinds: tuple[str, ...]) -> bool:
        """True if the pattern matches the name and `apply-to` is one of `kinds`."""
        return self.apply_to in kinds and self._pattern.search(name[:NAME_MAX]) is not None

    @property
    def row(self) -> dict[str, object]:
        """The policy as a mapping, as the store and exported definitions have it."""
        return {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "priority": self.priority,
            "definition": dict(self.definition),
        }


def _check_arguments(name: str, vhost: str, arguments: Mapping[str, object]) -> None:
    """Raise PreconditionFailed if an argument of a policy is invalid.

    A policy may have arguments for streams and for other queues. Both kinds are checked.
    """
    of_streams = {
        argument: value
        for argument, value in arguments.items()
        if argument in ("x-max-age", "x-stream-max-segment-size-bytes")
    }
    others = {
        argument: value for argument, value in arguments.items() if argument not in of_streams
    }
    QueueArguments(name, vhost, {"x-queue-type": "stream", **of_streams})
    QueueArguments(name, vhost, {"x-dead-letter-exchange": "", **others})


def _fault(invalid: InvalidArgument, definition: Mapping[str, object]) -> str:
    """Return the text about an invalid queue argument in the words of a policy's definition.

    The text names the key and the value of the definition, such as `'max-length' is -5`, and the
    reason. In the reason, each name of a queue argument is replaced by its key.
    """
    reason = invalid.reason
    named = ""
    for key, argument in BY_POLICY.items():
        reason = reason.replace(f"'{argument}'", f"'{key}'")
        if argument == invalid.argument:
            named = key
    return f"{_shown(named, definition[named])}: {reason}"


def _shown(key: str, value: object) -> str:
    """Return a key of a definition and its value, as JSON, for an error."""
    text = json.dumps(value, default=str)
    return f"'{key}' is {text if len(text) <= SHOWN else text[:SHOWN] + '...'}"


class Policies:
    """The policies of one virtual host by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Policy] = {}
        #: Operator policies by name. An operator policy bounds the arguments that other policies
        #: give to the queues that it matches.
        self.operator_by_name: dict[str, Policy] = {}

    def without(self, name: str) -> Policies:
        """Return the policies that are left without the policy `name`. This object is unchanged."""
        left = Policies()
        left.by_name = {other: policy for other, policy in self.by_name.items() if other != name}
        left.operator_by_name = dict(self.operator_by_name)
        return left

    def having(self, policy: Policy) -> Policies:
        """Return the policies after `policy` was set. This object is unchanged."""
        after = self.without(policy.name)
        after.by_name[policy.name] = policy
        return after

    def for_queue(self, name: str, kind: object) -> Policy | None:
        """Return the policy that applies to a queue of this name and type, or None."""
        return _best(self.by_name, name, _queue_kinds(kind))

    def for_exchange(self, name: str) -> Policy | None:
        """Return the policy that applies to an exchange of this name, or None."""
        return _best(self.by_name, name, _EXCHANGE_KINDS)

    def all_for_queue(self, name: str, kind: object) -> list[Policy]:
        """Return the policies that match a queue of this name and type, of any priority."""
        return self._matching(name, _queue_kinds(kind))

    def all_for_exchange(self, name: str) -> list[Policy]:
        """Return the policies that match an exchange of this name, of any priority."""
        return self._matching(name, _EXCHANGE_KINDS)

    def arguments(self, name: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Return the queue arguments of the policy that applies to a queue; empty if no policy
        does.

        `name` and `arguments` are the name and the declared arguments of the queue.
        """
        if not self.by_name and not self.operator_by_name:
            return EMPTY
        kind = arguments.get("x-queue-type")
        policy = self.for_queue(name, kind)
        own = EMPTY if policy is None else policy.arguments
        operator = self.operator_for_queue(name, kind)
        return own if operator is None else bounded(own, operator.arguments)

    def operator_for_queue(self, name: str, kind: object) -> Policy | None:
        """Return the operator policy that applies to a queue of this name and type, or None."""
        return _best(self.operator_by_name, name, _queue_kinds(kind))

    def alternate(self, name: str) -> str | None:
        """Return the alternate exchange that the policy of this exchange names.

        Return None if no policy applies to the exchange, or the policy names no alternate exchange.
        """
        policy = self.for_exchange(name)
        return None if policy is None else policy.alternate

    def _matching(self, name: str, kinds: tuple[str, ...]) -> list[Policy]:
        return [policy for policy in self.by_name.values() if policy.applies_to(name, kinds)]


def _best(policies: Mapping[str, Policy], name: str, kinds: tuple[str, ...]) -> Policy | None:
    """Return the matching policy of the highest priority; None if no policy matches the name.

    If several matching policies have this priority, return the policy whose name sorts first. The
    order of their creation must not decide, because a restart may change this order.
    """
    best: Policy | None = None
    for policy in policies.values():
        if (
            best is None
            or policy.priority > best.priority
            or policy.priority == best.priority
            and policy.name < best.name
        ) and policy.applies_to(name, kinds):
            best = policy
    return best


def bounded(own: Mapping[str, object], operator: Mapping[str, object]) -> dict[str, object]:
    """Return `own`, the arguments of a policy, bounded by `operator`, those of an operator policy.

    If both policies set a number for a key, the lower number applies. A negative number (a delivery
    limit may be -1) means no limit, so the other number applies. If both policies set another type
    of value for a key, the value of the operator policy applies.
    """
    merged = dict(own)
    for key, value in operator.items():
        known = merged.get(key)
        if isinstance(known, int) and isinstance(value, int):
            value = min(known, value) if min(known, value) >= 0 else max(known, value)
        merged[key] = value
    return merged


def _queue_kinds(kind: object) -> tuple[str, ...]:
    """Return the values of `apply-to` that include queues of this `x-queue-type`."""
    return ("all", "queues", "streams" if kind == "stream" else f"{kind or 'classic'}_queues")


def policy_of(vhost: str, name: str, row: Mapping[str, object]) -> Policy:
    """Create a policy from `row`, a mapping from the store or from imported definitions.

    Raises PreconditionFailed if `row` is not a valid policy.
    """
    thing = f"policy '{name}' in vhost '{vhost}'"
    definition, pattern, apply_to, priority = (
        row.get(key) for key in ("definition", "pattern", "apply-to", "priority")
    )
    if not isinstance(definition, dict) or not isinstance(pattern, str):
        raise PreconditionFailed(f"{thing} needs a string 'pattern' and an object 'definition'")
    if apply_to is None:
        apply_to = "all"
    if not isinstance(apply_to, str):
        raise PreconditionFailed(
            f"{thing}: 'apply-to' is {apply_to!r}, not one of {', '.join(APPLY_TO)}"
        )
    if priority is None:
        priority = 0
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise PreconditionFailed(f"{thing}: 'priority' is {priority!r}, not a whole number")
    return Policy(vhost, name, pattern, apply_to, priority, definition)


def operator_policy_of(vhost: str, name: str, row: Mapping[str, object]) -> Policy:
    """Create an operator policy from `row`, a mapping from the store or from imported definitions.

    Raises PreconditionFailed if `row` is not a valid policy, or has a key that operator policies
    cannot set.
    """
    policy = policy_of(vhost, name, {"apply-to": "queues", **row})
    thing = f"operator policy '{name}' in vhost '{vhost}'"
    if policy.apply_to not in OPERATOR_APPLY_TO:
        raise PreconditionFailed(
            f"{thing}: 'apply-to' is '{policy.apply_to}', not one of "
            + ", ".join(OPERATOR_APPLY_TO)
        )
    for key in policy.definition:
        if key in _NOT_FOR_OPERATORS:
            raise PreconditionFailed(f"{thing}: operator policies cannot set the key '{key}'")
    return policy
