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
    "trellis/server/link_deadlines.py",
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

#: The compiled modules that the compiler makes small instead of fast, by package: they never run
#: per message, but at a declaration, a login, a change of rights or policies, an import, a start,
#: a question of an operator, or in the background.
SMALL = {
    "broker": "alarms compatibility patterns",
    "broker/access": "roles",
    "broker/definitions": "exporting objects rabbitmq restore session_restorer trial",
    "broker/queues": "arguments pausing peeking policies recount replacing",
    "broker/routing": (
        "authorization binding_chunks binding_trial changed_bindings equivalence match_reasons"
        " queue_verdicts topology_stream tracing"
    ),
    "broker/store": (
        "audit backup catalog checkpoint_schedule dropping file_order findings inspect opening"
        " recovery renaming"
    ),
    "broker/stream": (
        "archived full_segments inspect leftover recovery removal replica streams template"
    ),
    "broker/vhost": (
        "applied_policies background bindings client_declarations declarations exchange_maker"
        " journals message_move move_destination move_survey options parameters private_queues"
        " queue_names"
    ),
    "protocols": (
        "credential_expiry deferred_reply end_reasons front listing login_input proxy redirect"
        " refusal_fields"
    ),
    "protocols/amqp": "front options",
    "protocols/amqp/channel": "cancelled exclusive_queues reauthorization",
    "protocols/amqp/connection": (
        "binding closing consuming declaring handshake heartbeats method_checks reauthorizing"
        " states"
    ),
    "protocols/mqtt": "front options",
    "protocols/mqtt/codec": "connect reasons",
    "protocols/mqtt/connection": (
        "authentication closing granting identifiers login reauthorization service"
    ),
    "protocols/mqtt/session": "restoring session_row sessions sys_topics wills",
    "protocols/websocket": "upgrade",
}


def modules(root: Path = ROOT) -> list[str]:
    """Return the paths of the modules to compile, relative to `root`, in a stable order."""
    candidates: list[Path] = []
    for name in COMPILED:
        path = root / name
        candidates += path.rglob("*.py") if path.is_dir() else [path]
    paths = (path.relative_to(root).as_posix() for path in candidates)
    return sorted(path for path in paths if not any(fnmatch(path, pattern) for pattern in LEFT_OUT))


def small_modules() -> set[str]:
    """Return the paths, as in `modules`, of the modules that are compiled for size (`-Os`)."""
    return {f"{package}/{name}.py" for package, names in SMALL.items() for name in names.split()}


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
        sys.exit(
            f"these modules are not compiled: {', '.join(interpreted)}; install a wheel that was "
            "built with TRELLIS_REQUIRE_COMPILED=1"
        )
    print(f"{len(names)} modules are compiled")


if __name__ == "__main__":
    main()
