"""Policies: what an operator says of queues and exchanges by the pattern of their names (RabbitMQ's
own idea).

Of the policies whose pattern is found in a name, the one with the highest priority holds, alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from broker.errors import PreconditionFailed
from broker.queues.arguments import BY_POLICY, EMPTY, QueueArguments

ALTERNATE: Final = "alternate-exchange"
#: What a policy may say and this broker has no need of.
_IGNORED: Final = (
    "queue-mode",
    "queue-version",
    "queue-master-locator",
    "queue-leader-locator",
    "dead-letter-strategy",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "initial-cluster-size",
    "target-group-size",
)
#: What a policy may apply to.
APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
#: The highest and, below 0, the lowest priority.
PRIORITY_MAX: Final = 1 << 31


class Policy:
    """One of them, checked. `definition` as it was written. Raises PreconditionFailed."""

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
            self._pattern = re.compile(pattern, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            raise PreconditionFailed(
                f"{thing}: its pattern '{pattern}' is no regular expression ({error})"
            ) from None
        if apply_to not in APPLY_TO:
            raise PreconditionFailed(
                f"{thing}: it applies to '{apply_to}', which is none of {', '.join(APPLY_TO)}"
            )
        if abs(priority) > PRIORITY_MAX:
            raise PreconditionFailed(
                f"{thing}: its priority {priority} is not within {PRIORITY_MAX}"
            )
        if not definition:
            raise PreconditionFailed(f"{thing}: it says nothing")
        for key in definition:
            if key not in BY_POLICY and key != ALTERNATE and key not in _IGNORED:
                raise PreconditionFailed(
                    f"{thing}: nobody knows '{key}'; known are {', '.join([*BY_POLICY, ALTERNATE])}"
                )
        alternate = definition.get(ALTERNATE)
        if alternate is not None and not isinstance(alternate, str):
            raise PreconditionFailed(f"{thing}: '{ALTERNATE}' is not a text")
        self.name = name
        self.pattern = pattern
        self.apply_to = apply_to
        self.priority = priority
        self.definition = definition
        #: What it says of queues, as their arguments.
        self.arguments = {
            BY_POLICY[key]: value for key, value in definition.items() if key in BY_POLICY
        }
        self.alternate = alternate
        try:
            _check_arguments(name, vhost, self.arguments)
        except PreconditionFailed as error:
            raise PreconditionFailed(f"{thing}: {error}") from None

    def applies_to(self, name: str, kinds: tuple[str, ...]) -> bool:
        """Whether it is about this object, which is of these kinds."""
        return self.apply_to in kinds and self._pattern.search(name) is not None

    @property
    def row(self) -> dict[str, object]:
        """As it is kept."""
        return {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "priority": self.priority,
            "definition": dict(self.definition),
        }


def _check_arguments(name: str, vhost: str, terms: Mapping[str, object]) -> None:
    """Would a queue, or a stream, take these for arguments? Raises PreconditionFailed."""
    of_streams = {
        argument: value
        for argument, value in terms.items()
        if argument in ("x-max-age", "x-stream-max-segment-size-bytes")
    }
    others = {argument: value for argument, value in terms.items() if argument not in of_streams}
    QueueArguments(name, vhost, {"x-queue-type": "stream", **of_streams})
    QueueArguments(name, vhost, {"x-dead-letter-exchange": "", **others})


class Policies:
    """Of one virtual host, by their names."""

    def __init__(self) -> None:
        self.by_name: dict[str, Policy] = {}

    def for_queue(self, name: str, kind: object) -> Policy | None:
        """The one that holds for a queue of this type."""
        return self._best(
            name,
            ("all", "queues", "streams" if kind == "stream" else f"{kind or 'classic'}_queues"),
        )

    def for_exchange(self, name: str) -> Policy | None:
        """The one that holds for an exchange."""
        return self._best(name, ("all", "exchanges"))

    def arguments(self, name: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """What holds for a queue beside its own arguments, as arguments."""
        if not self.by_name:
            return EMPTY
        policy = self.for_queue(name, arguments.get("x-queue-type"))
        return EMPTY if policy is None else policy.arguments

    def alternate(self, name: str) -> str | None:
        """The alternate exchange of one that names none itself."""
        policy = self.for_exchange(name)
        return None if policy is None else policy.alternate

    def _best(self, name: str, kinds: tuple[str, ...]) -> Policy | None:
        best: Policy | None = None
        for policy in self.by_name.values():
            if (best is None or policy.priority > best.priority) and policy.applies_to(name, kinds):
                best = policy
        return best


def policy_of(vhost: str, name: str, row: Mapping[str, object]) -> Policy:
    """A policy as it is kept or imported. Raises PreconditionFailed."""
    definition, pattern, apply_to, priority = (
        row.get(key) for key in ("definition", "pattern", "apply-to", "priority")
    )
    if not isinstance(definition, dict) or not isinstance(pattern, str):
        raise PreconditionFailed(
            f"policy '{name}' in vhost '{vhost}': it needs a 'pattern' and a table 'definition'"
        )
    if not isinstance(apply_to, str):
        apply_to = "all"
    if not isinstance(priority, int) or isinstance(priority, bool):
        priority = 0
    return Policy(vhost, name, pattern, apply_to, priority, definition)
