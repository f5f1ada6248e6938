"""Profiles a real broker under a workload of the load tool with perf, and sorts samples by
component.

    python benchmarks/perf_profile.py [WORKLOAD...]
                           [mqtt-qos0 mqtt-qos1 mqtt-50pub mqtt-fan10000 amqp-auto amqp-ack ...]
        --trellis COMMAND  the broker [.run/bin/trellis]
        --into FILE        the document whose marked part gets the tables [docs/performance.md]

The components are the kernel (mostly sockets), uvloop, copying, the interpreter's objects and the
compiled code of Trellis. A component's share of the samples, multiplied by the broker's CPU time
per message, gives microseconds. Needs Linux, perf on PATH, and a kernel that permits sampling.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
# Add the root, where Python finds the table of workloads in trellis.bench.
sys.path.insert(1, str(ROOT))

from peers.brokers.trellis import TrellisPeer, parsed  # noqa: E402  (needs the new path)
from peers.peer import Running, Tools  # noqa: E402
from peers.report import between  # noqa: E402
from peers.table import figure, rows  # noqa: E402

from trellis.bench.workloads import WORKLOADS  # noqa: E402

PROFILED: Final = (
    "mqtt-qos0",
    "mqtt-qos1",
    "mqtt-50pub",
    "mqtt-pingpong",
    "mqtt-fan10000",
    "amqp-auto",
    "amqp-ack",
    "amqp-fan10",
    "amqp-50pub",
    "amqp-pingpong",
    "amqp-64k",
)
#: Seconds of load; seconds between the connection of the last client and the sampling; seconds of
#: sampling, which must end before the load.
LOADED: Final = 8
BEFORE: Final = 2
SAMPLED: Final = 3
#: The assumed number of subscriptions that the broker accepts per second, which decides how long to
#: wait for all of them; and the seconds within which all clients must connect.
SUBSCRIBED: Final = 4_000
PATIENCE: Final = 60
#: The number of Trellis functions listed for each workload.
NAMED: Final = 6

#: (component, library pattern, symbol pattern). A sample belongs to the first row that matches it.
PLACES: Final = (
    ("kernel", r"kernel|vdso", ""),
    ("uvloop and libuv", r"^loop\.", ""),
    ("copying bytes", r"^libc", r"mem(move|cpy|set|cmp)|BytesWriter|Bytes"),
    ("copying bytes", "", r"CPyBytesWriter"),
    ("dicts and hashes", "python", r"dict|siphash|hash"),
    (
        "objects made and freed",
        "python|libc",
        r"[Mm]alloc|[Ff]ree|Alloc|dealloc|_PyObject_GC|gc_|PyBytes_From|PyLong_From|PyList_Append",
    ),
    ("objects made and freed", "mypyc", r"dealloc|_new$|_setup$"),
    ("compiled code of Trellis", "mypyc|strings|librt", ""),
    ("the rest of Python", "", ""),
)
ORDER: Final = tuple(dict.fromkeys(place for place, _, _ in PLACES))


class Profile(NamedTuple):
    """The profile of a workload: the broker's CPU time in microseconds per message, and the
    percentage of samples by component and by Trellis function.
    """

    workload: str
    cpu: float
    places: Counter[str]
    functions: Counter[str]


def place(library: str, symbol: str) -> str:
    """Return the component that a sample in this library and symbol belongs to."""
    return next(
        name
        for name, libraries, symbols in PLACES
        if re.search(libraries, library) and re.search(symbols, symbol)
    )


def function(symbol: str) -> str:
    """Return the Python name of a compiled function; mypyc writes ___ instead of a dot."""
    return ".".join(symbol.removeprefix("CPyDef_").split("___"))


def measure(workload: str, trellis: Path) -> Profile:
    """Run a workload against a new broker, sample the broker with perf, and return the profile.

    Raises Failed, CalledProcessError.
    """
    with tempfile.TemporaryDirectory(prefix="trellis-profile-") as directory:
        running: Running = TrellisPeer(Tools(trellis=trellis)).start(Path(directory))
        try:
            return _sampled(workload, trellis, running, Path(directory))
        finally:
            running.stop()


def _sampled(workload: str, trellis: Path, running: Running, directory: Path) -> Profile:
    pid, data, figures = str(running.roots[0]), directory / "perf.data", directory / "load.json"
    load = subprocess.Popen(
        [
            trellis,
            "bench",
            "load",
            workload,
            "--amqp",
            running.amqp_url,
            "--mqtt",
            f"mqtt://127.0.0.1:{running.mqtt}",
            "--pid",
            pid,
            "--seconds",
            str(LOADED),
            "--rounds",
            "1",
            "--json",
            figures,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_clients(workload, running.roots[0], load)
        record = ["perf", "record", "--quiet", "--output", str(data), "--pid", pid]
        subprocess.run([*record, "--", "sleep", str(SAMPLED)], check=True, capture_output=True)
        if load.poll() is not None:
            sys.exit(
                f"profile: {workload} ended before {SAMPLED} s of it were sampled; increase LOADED "
                "in perf_profile.py"
            )
    finally:
        if load.wait():
            sys.exit(
                f"profile: `trellis bench load {workload}` failed: run it alone to see its error"
            )
    report = [
        "perf",
        "report",
        "--input",
        str(data),
        "--no-children",
        "--stdio",
        "--call-graph",
        "none",
        "--fields",
        "overhead,dso,sym",
        "--field-separator",
        ";",
    ]
    output = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    cpu = json.loads(figures.read_text())["workloads"][0]["median"]["broker_us"]
    return read(workload, cpu, output)


def _wait_for_clients(workload: str, pid: int, load: subprocess.Popen[bytes]) -> None:
    """Wait until all clients are connected and have had time to subscribe and begin to publish.

    So the profile does not include the cost of connecting. Exit with an error if the clients do not
    connect within PATIENCE seconds.
    """
    clients = WORKLOADS[workload].publishers + WORKLOADS[workload].subscribers
    until = time.monotonic() + PATIENCE
    while len(list(Path(f"/proc/{pid}/fd").iterdir())) < clients:
        if load.poll() is not None or time.monotonic() > until:
            sys.exit(f"profile: {clients:,} clients of {workload} did not connect in {PATIENCE} s")
        time.sleep(0.1)
    time.sleep(BEFORE + clients / SUBSCRIBED)


def read(workload: str, cpu: float, report: str) -> Profile:
    """Return the profile of a workload from the output of `perf report`.

    `cpu` is the broker's CPU time in microseconds per message.
    """
    profile = Profile(workload, cpu, Counter(), Counter())
    for line in report.splitlines():
        share, _, rest = line.partition(";")
        library, _, symbol = (part.strip() for part in rest.partition(";"))
        if not share.strip().endswith("%"):
            continue
        # Remove the mark of perf before the symbol, such as "[.] ".
        percent, symbol = float(share.strip()[:-1]), symbol[4:]
        where = place(library, symbol)
        profile.places[where] += percent  # type: ignore[assignment]  # a Counter may count parts
        if where == "compiled code of Trellis":
            profile.functions[function(symbol)] += percent  # type: ignore[assignment]
    return profile


def table(profiles: Sequence[Profile], command: str, version: str) -> str:
    """Return the profiles as Markdown tables, for the page that --into names."""
    header = ("nanoseconds per message", *(profile.workload for profile in profiles))
    lines = [
        (name, *(figure(profile.cpu * 10 * profile.places[name]) for profile in profiles))
        for name in ORDER
    ]
    lines.append(("together", *(figure(profile.cpu * 1000) for profile in profiles)))
    named = [
        f"- {profile.workload}: "
        + ", ".join(
            f"`{name}` {percent:.1f} %" for name, percent in profile.functions.most_common(NAMED)
        )
        for profile in profiles
    ]
    return "\n".join(
        (
            f"Sampled with `{command}`, Trellis {version}.",
            "",
            rows(header, lines),
            "",
            "The most expensive functions of Trellis:",
            "",
            *named,
        )
    )


def main() -> int:
    """Profile the chosen workloads, write the tables; return the exit code."""
    parser = argparse.ArgumentParser(description="Profile the broker's CPU time.")
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"workloads to profile [{' '.join(PROFILED)}]",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "performance.md",
        help="write the tables into the marked part of this document [docs/performance.md]",
    )
    options = parsed(parser)
    for workload in options.workloads:
        if workload not in WORKLOADS:
            parser.error(f"unknown workload {workload}; `trellis bench load --list` shows them")
    if shutil.which("perf") is None:
        sys.exit(
            "profile: perf is missing (on Debian and Ubuntu: apt install linux-perf or "
            "linux-tools-generic)"
        )
    profiles = []
    for workload in options.workloads or PROFILED:
        profile = measure(workload, options.trellis)
        shares = ", ".join(f"{name} {share:.0f} %" for name, share in profile.places.most_common())
        print(f"{workload:12} {profile.cpu:8.3f} us: {shares}", flush=True)
        profiles.append(profile)
    words = table(
        profiles,
        "python benchmarks/perf_profile.py",
        TrellisPeer(Tools(trellis=options.trellis)).version(),
    )
    options.into.write_text(between(options.into.read_text(), words, options.into.name, "profiles"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
