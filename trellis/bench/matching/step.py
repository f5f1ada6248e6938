"""The process of one algorithm: `python -m trellis.bench.matching.step NAME [--interpreted]`.

A request is a line of JSON, and so is its answer. A peer is a program with the same protocol:

    {"kind": "about"}                                    -> {"version": "..."}
    {"kind": "answers", files, "topics_asked": N}
        -> {"topics": N, "subscribers": N, "digest": N}, see `answers`
    {"kind": "workload", files, "seconds", "expected"}
        -> {"lookup", "first", "any", "subscribe", "unsubscribe", "load"} in ns
    {"kind": "memory", files}
        -> {"octets"}, bytes per subscription
    {"kind": "cold", "pattern", "topic", "seconds"}
        -> {"subscribe", "unsubscribe", "lookup"} in ns
    {"kind": "threads", files, "readers", "writers", "mixed"}   -> {"ms"}
    {"kind": "churn", files, "every", "seconds", "expected"}    -> {"publish"} in ns
    {"kind": "splitting", files, "seconds"}                     -> {"each", "once"} in ns

    files       paths "patterns", "topics" and "further" of files with one AMQP key per line;
                subscribers are the line numbers of patterns, from 0
    expected    a list of [topics, subscribers, digest]

The answer to an unsupported request is {"unable": reason}. The answer is {"wrong": problem} if the
algorithm's answers differ from the expected answers.
"""

from __future__ import annotations

import gc
import json
import platform
import sys
from collections.abc import Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

#: Name of the contender that puts the route cache in front of the trie; no algorithm is registered
#: under this name.
CACHED: Final = "route-cache"


class _Interpreted:
    """Import finder that loads the modules of `matching` from source, even if they are compiled."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("matching."):
            return None
        return FileFinder(path[0], (SourceFileLoader, [".py"])).find_spec(name)


class MatchingStep:
    """Answers the requests of the bench with one algorithm."""

    def __init__(self, name: str) -> None:
        self.name = name

    def make(self) -> Any:
        """Return an empty matcher of the algorithm, for the AMQP grammar."""
        from matching import AMQP, create

        if self.name == CACHED:
            from matching.cache import RouteCache

            return RouteCache(create("trie", AMQP))
        return create(self.name, AMQP)

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out the measurement that a request names, and return the answer.

        Raises WrongMatch.
        """
        from trellis.bench.matching import answers, churn, concurrency, measure, memory, splitting

        kind = request["kind"]
        if kind == "about":
            return {"version": _version()}
        if kind == "memory":
            return {
                "octets": memory.subscription_size(
                    self.make, Path(request["patterns"]).read_bytes()
                )
            }
        if kind == "cold":
            return dict(
                measure.cold(self.make, request["pattern"], request["topic"], request["seconds"])
            )
        patterns, topics, further = (
            Path(request[name]).read_text().split("\n")
            for name in ("patterns", "topics", "further")
        )
        if kind == "answers":
            matcher = self.make()
            measure.loaded(matcher, patterns)
            return answers.answers(matcher.match, topics[: request["topics_asked"]])._asdict()
        if kind == "workload":
            return dict(
                measure.workload(
                    self.make(), patterns, topics, further, request["expected"], request["seconds"]
                )
            )
        if kind == "threads":
            matcher = (
                self.make()
                if self.name in concurrency.LOCK_FREE
                else concurrency.LockedMatcher(self.make())
            )
            return dict(
                concurrency.threads(
                    matcher,
                    patterns,
                    topics,
                    further,
                    request["readers"],
                    request["writers"],
                    request["mixed"],
                )
            )
        if kind == "churn":
            return dict(
                churn.churn(
                    self.make(),
                    patterns,
                    topics,
                    further,
                    request["expected"],
                    request["every"],
                    request["seconds"],
                )
            )
        if kind == "splitting":
            return dict(splitting.splitting(patterns, topics, request["seconds"]))
        return {"unable": f"unknown request {kind!r}"}


def serve(step: MatchingStep) -> int:
    """Answer the requests on stdin, one per line, until stdin ends; return the exit code."""
    from trellis.bench.matching.answers import WrongMatch

    gc.disable()
    for line in sys.stdin:
        try:
            answer = step.do(json.loads(line))
        except WrongMatch as error:
            answer = {"wrong": str(error)}
        gc.collect()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def main(argv: Sequence[str]) -> int:
    """Answer requests with the algorithm named in `argv`; return the exit code."""
    if "--interpreted" in argv:
        sys.meta_path.insert(0, _Interpreted)
    return serve(MatchingStep(argv[0]))


def _version() -> str:
    import matching.trie

    compiled = not (matching.trie.__file__ or "").endswith(".py")
    try:
        ours = version("trellis-broker")
    except PackageNotFoundError:
        ours = "source"
    kind = "compiled" if compiled else "interpreted"
    return f"{ours}, {kind}, {platform.python_implementation()} {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
