"""The lists of the modules to compile. As a script, check that each one is installed compiled."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from fnmatch import fnmatch
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Paths to compile, all in one group, so that calls between modules are C calls. Of trellis/, only
#: the modules that run per received chunk, in the broker and in its load tool, are compiled. The
#: others wait for the event loop or run once, and stay open to monkeypatching. A call to
#: trellis/progress.py, which is not compiled, lets Python handle Ctrl-C.
COMPILED = (
    "matching",
    "broker",
    "protocols",
    "trellis/server/turn.py",
    "trellis/server/turn_link.py",
    "trellis/server/link.py",
    "trellis/server/layered_link.py",
    "trellis/server/rate_limited_link.py",
    "trellis/server/tls.py",
    *(
        f"trellis/bench/{name}.py"
        for name in (
            "check",
            "latency",
            "reader",
            "mqtt_readers",
            "amqp_readers",
            "line",
            "generator",
        )
    ),
)

#: Patterns of paths that are not compiled, and the reasons.
LEFT_OUT = {
    "*/__init__.py": "the package's docstring and its short names: runs once, at import",
    "*/__main__.py": "runs once, by `python -m`",
    "broker/replication/*.py": "runs once for each batch, and waits for the replicated log",
}

#: Modules written in C, and their paths. Interpreted code replaces them where they are missing.
WRITTEN_IN_C = {"trellis.cluster.boot_clock": "trellis/cluster/boot_clock.c"}

#: The compiled modules that GCC makes as fast as it can (`-O3`, link-time optimisation), by
#: package: they run per message or per search. GCC compiles the others with `-Og`, which takes less
#: than half of the CPU time and gives less machine code: they run at a declaration, a login or a
#: start, in the background, or for rare kinds of messages.
FAST = {
    "broker/messages": "message outlet",
    "broker/queues": (
        "consumer delivery_gate delivery_window destination fifo limited paged_tail priority queue"
        " returned slices statistics waiting"
    ),
    "broker/routing": (
        "binding header_samples matching_bindings plan plan_index plan_search planner"
        " publish_context relay resolved_targets route sampling subscriber topic_history"
    ),
    "broker/routing/exchanges": "base consistent_hash direct fanout headers topic",
    "broker/store": (
        "batch_records codecs contract durable durable_batch entries files live_messages liveness"
        " memory paged_messages record_parts records segments wal"
    ),
    "broker/stream": "columns queue rows_write",
    "broker/vhost": "publishing vhost",
    "matching": (
        "bucket cache cells numbered shapes subscriber_set topics trie trie_search trie_walk"
        " word_cache word_sets"
    ),
    "matching/fields": "criteria matcher rarest search",
    "protocols": "budget connection incomplete_message layer tally window",
    "protocols/amqp/channel": "channel confirms consumer publisher receiver settlement",
    "protocols/amqp/codec": "assembly contents frames journal_codec properties stored tables",
    "protocols/amqp/connection": "channels connection dispatch",
    "protocols/mqtt/codec": (
        "content packets packets5 publish_properties relay_formats remaining_length topics"
    ),
    "protocols/mqtt/connection": "connection level4 level5 packet_handler publications replies",
    "protocols/mqtt/session": (
        "exactly_once inbox_consumer inflight publish_writer session shared_deliveries"
    ),
    "protocols/websocket": "frames",
    "trellis/server": "link turn",
}


def modules(root: Path = ROOT) -> list[str]:
    """Return the paths of the modules to compile, relative to `root`, in a stable order."""
    found: list[Path] = []
    for name in COMPILED:
        path = root / name
        found += path.rglob("*.py") if path.is_dir() else [path]
    paths = (path.relative_to(root).as_posix() for path in found)
    return sorted(path for path in paths if not any(fnmatch(path, pattern) for pattern in LEFT_OUT))


def fast_modules() -> set[str]:
    """Return the paths of the modules that GCC makes as fast as it can, as in `modules`."""
    return {f"{package}/{name}.py" for package, names in FAST.items() for name in names.split()}


def _file(name: str) -> str:
    """Return the file of a module; "" if the module cannot be located.

    A module that needs packages which are not installed is located without being imported.
    """
    try:
        return importlib.import_module(name).__file__ or ""
    except ImportError as error:
        if "trellis-broker[" not in str(error):
            raise
        spec = importlib.util.find_spec(name)
        return spec.origin or "" if spec is not None else ""


def main() -> None:
    """Check that every module to compile is installed as an extension."""
    names = [path.removesuffix(".py").replace("/", ".") for path in modules()]
    names += WRITTEN_IN_C
    files = {name: _file(name) for name in names}
    interpreted = [
        f"{name} ({file})"
        for name, file in files.items()
        if not file.endswith(tuple(EXTENSION_SUFFIXES))
    ]
    if interpreted:
        sys.exit("not compiled: " + ", ".join(interpreted))
    print(f"{len(names)} modules are compiled")


if __name__ == "__main__":
    main()
