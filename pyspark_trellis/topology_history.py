"""Computes when each binding, exchange and queue of a virtual host existed.

The source is the virtual host's stream `$topology`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import JournalStream
from pyspark_trellis.periods import ALWAYS, Existence
from pyspark_trellis.read_scope import scope_of
from pyspark_trellis.topology import TopologyState, binding_key, rows_of

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TopologyHistory:
    """The bindings, exchanges and queues of a virtual host, with the times of their existence.

    The keys of `names` are pairs of kind and name, such as ("queue", "orders").
    """

    def __init__(self, vhost: str) -> None:
        self.vhost: Final = vhost
        self.bindings: Final[dict[tuple[str, ...], Existence]] = {}
        self.names: Final[dict[tuple[str, str], Existence]] = {}

    @classmethod
    def of(cls, stream: JournalStream) -> TopologyHistory:
        """Read the whole stream, and return the history of its virtual host.

        Bindings in the first complete snapshot count as existing before it. Raises PipelineError.
        """
        bounds = stream.bounds()
        history: TopologyHistory | None = None
        state: TopologyState | None = None
        known = False
        begun = ALWAYS
        for at, vhost, event, facts in rows_of(stream, bounds.first, bounds.next):
            history = history or cls(vhost)
            if state is None or (event == "snapshot" and (facts.get("restarted") or not known)):
                # Bindings and names that the snapshot does not contain ended with the broker's
                # restart.
                state, known = TopologyState(vhost, at), False
                begun = _micros(at) if history.bindings or history.names else ALWAYS
            try:
                if event == "complete":
                    if not known:
                        history._replace(state, begun)
                    known = True
                elif event != "snapshot":
                    state.apply(event, facts)
                    if known:
                        history._apply(event, facts, _micros(at))
            except (KeyError, TypeError):
                raise PipelineError(
                    f"{stream.name} has a row '{event}' that this version of Trellis cannot read: "
                    "use the version that wrote it"
                ) from None
        if history is None:
            raise PipelineError(
                f"{stream.name} has no rows, so the bindings of the past are unknown"
            )
        return history

    def _replace(self, state: TopologyState, at: int) -> None:
        """Record that only the bindings, exchanges and queues of `state` exist from `at` on.

        `at` is in microseconds since 1970, or ALWAYS.
        """
        pairs: list[tuple[dict[Any, Existence], dict[Any, dict[str, Any]]]] = [
            (self.bindings, dict(state.bindings)),
            (self.names, dict(state.names)),
        ]
        for known, now in pairs:
            for key, existence in known.items():
                if key not in now:
                    existence.set(False, at)
            for key, facts in now.items():
                _begin(known, key, facts, at)

    def _apply(self, event: str, facts: dict[str, Any], at: int) -> None:
        exists = event in ("declare", "bind", "subscribe")
        if event in ("declare", "delete"):
            key: Any = (facts["kind"], facts["name"])
            existences: Any = self.names
        else:
            key, existences = binding_key(facts), self.bindings
        if exists:
            _begin(existences, key, facts, at)
        elif key in existences:
            existences[key].set(False, at)


def _begin(known: dict[Any, Existence], key: Any, facts: dict[str, Any], at: int) -> None:
    """Record that a binding, exchange or queue with the fields `facts` exists from `at` on.

    `at` is in microseconds since 1970, or ALWAYS.
    """
    before = known.get(key)
    if before is not None and "arguments" in facts and scope_of(before.facts) != scope_of(facts):
        # The session receives other messages than before: count it as another subscription.
        before.set(False, at)
        known[key, len(known)] = before
        before = None
    if before is None:
        before = known[key] = Existence(facts)
    before.facts = facts
    before.set(True, at)


def _micros(at: datetime) -> int:
    since = at - _START
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
