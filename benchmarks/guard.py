"""Counts the instructions that a publication costs inside the compiled broker, and compares the
counts with the recorded counts.

    python -P benchmarks/guard.py [FLOW...]            compare with benchmarks/guard.json
    python -P benchmarks/guard.py --rules [FLOW...]    compare users with and without topic rules
    python -P benchmarks/guard.py --traced [FLOW...]   compare with and without a running trace
    python -P benchmarks/guard.py --sampled [FLOW...]  compare with and without a sampler
    python -P benchmarks/guard.py --owned [FLOW...]    compare with and without a cluster
    python -P benchmarks/guard.py --write WHY [FLOW...]    record the counts of these flows

The exit code is 1 if a count is too high: more than 2 % (TOLERANCE) above its record. With an
option, a count is too high if the option raises it by more than

    --rules      0.5 % (NOISE): a user with 100 topic rules
    --traced     3 % (TRACED): a trace that follows no message
    --sampled    3 % (TRACED): a sampler for distributed tracing that samples no message
    --owned      1 % (OWNED), of a transient flow: a broker that owns the log of a cluster

An option changes where objects lie in memory, and this alone moves the counts of the persistent
flows by up to 1.3 %, up or down: at another address, memcpy and _PyObject_Free take a few
instructions more or less. So if an option makes a flow's count too high, the flow is counted
again, with and without the option, in all further layouts of memory in LAYOUTS. The flow passes if
the mean of its counts with the option is not too high, compared with the mean without the option.

The record in guard.json is the reference: every change is compared with the record, not with the
previous change, so that many small losses cannot add up unseen. Use `--write` only for a new
reference: for a flow that has no record yet, or for another Python or compiler. Never use it to
make a slower flow pass. Without FLOW, `--write` records all flows. WHY, the reason for the new
reference, must be in CHANGELOG.md word for word; guard.json keeps one reason per flow.

Instructions are counted by callgrind (valgrind must be installed), so the count does not depend on
the load of the machine. Each flow of flows.py runs twice, with few and with more messages: the
difference of both runs leaves out start and warm-up. Hash seed and memory are prepared (FIXED, and
`prepare_memory` in flows.py): two runs on the same files differ by less than 0.1 %. A change
elsewhere, such as an import or the path of the installation, moved a count by up to 0.7 %. Another
build of Python or another compiler may change a count by a few percent: compare counts of one
machine only. Run the guard with the Python that has the compiled broker installed, from a directory
without the sources.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Final

import broker.queues.queue

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "guard.json"
CHANGELOG = HERE.parent / "CHANGELOG.md"
FLOWS = (
    "mqtt-qos0-1-1",
    "mqtt-qos0-1-10",
    "mqtt-qos1-1-1",
    "mqtt-persistent",
    "amqp-auto-ack",
    "amqp-ack-confirm",
    "amqp-persistent",
    "amqp-1-10",
    "amqp-headers",
)
#: Number of messages in the short and in the long run of a flow.
FEW, MORE = 2_000, 6_000
#: Environment of a run. The hash seed decides which keys of a dict collide. Blocks above 8 KiB are
#: mapped, so that the state of the heap does not decide whether a growing buffer is copied.
FIXED = {"PYTHONHASHSEED": "0", "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=8192"}
#: A count may be above its record by this share.
TOLERANCE = 0.02
#: A count with topic rules may be above the count without rules by this share.
NOISE = 0.005
#: Lengths of the path of flows.py in further comparisons: a longer path moves objects in memory.
#: The environment and the hash seed change the counts by less than 0.1 %.
LAYOUTS: Final = tuple(range(30, 270, 15))
#: A count in a broker that owns the log of a cluster may be above the count without a cluster, with
#: the same store, by this share. A test of the lease reads the clock once. In a turn of 100
#: messages there is a test for the agenda and one for each client: 0.7 % of the cheapest flows.
OWNED = 0.01
#: The flows without persistent messages: a cluster must not slow them down.
TRANSIENT = tuple(flow for flow in FLOWS if "persistent" not in flow)
#: A count beside a running trace may be above the count without a trace by this share.
TRACED = 0.03


def instructions(flow: str, messages: int, *more: str, script: Path = HERE / "flows.py") -> int:
    """Return the instructions of a run of flows.py with `messages` messages of one flow.

    The instructions are counted by callgrind. `more` are further arguments of flows.py, whose path
    is `script`.
    """
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        sys.executable,
        "-P",
        str(script),
        "--rounds",
        "1",
        "--messages",
        str(messages),
        *more,
        flow,
    ]
    environment = os.environ | FIXED
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1_200)
    match = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or match is None:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return int(match[1])


def count(flow: str, *more: str, script: Path = HERE / "flows.py") -> int:
    """Return the instructions per publication of a flow, with `script` as the path of flows.py."""
    with ThreadPoolExecutor(2) as pool:
        few, many = pool.map(
            lambda messages: instructions(flow, messages, *more, script=script), (FEW, MORE)
        )
    return round((many - few) / (MORE - FEW))


def compile_modules() -> None:
    """Compile the modules of the flows, so that no counted run has to compile them."""
    for module in HERE.glob("flow*.py"):
        py_compile.compile(str(module))


def measure(flows: list[str], recorded: dict[str, int]) -> dict[str, int]:
    """Return the instructions per publication of each flow; print each count beside its record."""
    compile_modules()
    counts = {}
    for flow in flows:
        measured = counts[flow] = count(flow)
        change = f", {measured / recorded[flow] - 1:+.2%}" if flow in recorded else ""
        print(f"{flow:20} {measured:7,} instructions per publication{change}", flush=True)
    return counts


def in_layouts(flow: str, option: str, plain: int, other: int, *base: str) -> tuple[int, int]:
    """Return the mean counts of a flow without and with an option, over all layouts of memory.

    `plain` and `other` are the counts in the present layout. `base` are the options of the run
    without the option.
    """
    without, with_option = [plain], [other]
    for length in LAYOUTS:
        with flows_at(length) as script:
            without.append(count(flow, *base, script=script))
            with_option.append(count(flow, option, script=script))
    return round(fmean(without)), round(fmean(with_option))


def compare_option(flows: list[str], option: str, allowed: float, *base: str) -> int:
    """Count the instructions per publication without and with an option of flows.py; print both.

    Return 1 if the option raises a count by more than the share `allowed`, else 0. `allowed` is
    above 0, because other hash values alone change a count a little. `base` are the options of the
    run without the option.
    """
    compile_modules()
    worse = 0
    for flow in flows:
        plain, other, how = count(flow, *base), count(flow, option), ""
        if other > plain * (1 + allowed):
            plain, other = in_layouts(flow, option, plain, other, *base)
            how = f" (means of {1 + len(LAYOUTS)} layouts)"
        worse += other > plain * (1 + allowed)
        print(
            f"{flow:20} {plain:7,} instructions per publication without {option}, "
            f"{other:7,} with, {other / plain - 1:+.2%}{how}",
            flush=True,
        )
    return 1 if worse else 0


@contextmanager
def flows_at(length: int) -> Iterator[Path]:
    """Yield a path of flows.py of about `length` characters, through a symbolic link."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "l".ljust(length - len(directory) - len("//flows.py"), "l")
        place.symlink_to(HERE)
        yield place / "flows.py"


def compare(counts: dict[str, int], recorded: dict[str, int]) -> int:
    """Return 1 if a count is more than TOLERANCE above its record, else 0; print such counts."""
    worse = 0
    for flow, measured in counts.items():
        if measured > recorded[flow] * (1 + TOLERANCE):
            worse = 1
            print(
                f"guard: {flow} costs {measured:,} instructions per publication, "
                f"{measured / recorded[flow] - 1:.1%} more than the recorded {recorded[flow]:,}; "
                f"{TOLERANCE:.0%} more is allowed"
            )
    return worse


def check_reasons(reasons: dict[str, str]) -> None:
    """End the program unless CHANGELOG.md has the reason for each flow's recorded count.

    `reasons` maps flows to reasons, which CHANGELOG.md must have word for word.
    """
    changelog = " ".join(CHANGELOG.read_text().split())
    for flow, why in reasons.items():
        if not why or " ".join(why.split()) not in changelog:
            sys.exit(
                "guard: CHANGELOG.md must contain the reason for the recorded count of flow "
                f"{flow}, word for word: {why!r}"
            )


def main() -> int:
    """Compare or record the counts of the chosen flows; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Compare the instructions per publication with the recorded ones."
    )
    parser.add_argument("flow", nargs="*", help=f"flows (default: all): {', '.join(FLOWS)}")
    parser.add_argument(
        "--write",
        metavar="WHY",
        help="record the counts as the new reference; WHY is the reason, and CHANGELOG.md must "
        "contain it word for word",
    )
    parser.add_argument(
        "--rules", action="store_true", help="compare users with and without topic rules"
    )
    parser.add_argument(
        "--traced", action="store_true", help="compare with and without a running trace"
    )
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="compare with and without a sampler for distributed tracing",
    )
    parser.add_argument(
        "--owned",
        action="store_true",
        help="compare transient flows with and without a cluster",
    )
    options = parser.parse_args()
    for name in options.flow:
        if name not in FLOWS:
            parser.error(f"unknown flow {name!r}; the flows are {', '.join(FLOWS)}")
    flows = options.flow or list(FLOWS)
    if (broker.queues.queue.__file__ or "").endswith(".py"):
        sys.exit(
            "guard: the broker that this Python finds is not compiled; "
            "use .run/bin/python -P, from another directory"
        )
    if shutil.which("valgrind") is None:
        sys.exit("guard: valgrind is missing (on Debian and Ubuntu: apt install valgrind)")
    if options.rules:
        return compare_option(flows, "--rules", NOISE)
    if options.traced:
        return compare_option(flows, "--traced", TRACED)
    if options.sampled:
        return compare_option(flows, "--sampled", TRACED)
    if options.owned:
        transient = [flow for flow in flows if flow in TRANSIENT]
        return compare_option(transient, "--owned", OWNED, "--on-disk")
    record = json.loads(BASELINE.read_text())
    reasons: dict[str, str] = record["why"]
    if options.write is not None:
        reasons |= dict.fromkeys(flows, options.write)
    check_reasons(reasons)
    python = ".".join(platform.python_version_tuple()[:2])
    known = record["flows"] if record["python"] == python else {}
    if options.write is not None:
        recorded = known | measure(flows, known)
        record = {
            "python": python,
            "compiler": platform.python_compiler(),
            "why": {flow: reasons[flow] for flow in FLOWS if flow in recorded},
            "flows": {flow: recorded[flow] for flow in FLOWS if flow in recorded},
        }
        BASELINE.write_text(json.dumps(record, indent=2) + "\n")
        print(f"recorded in {BASELINE}")
        return 0
    counts = measure(flows, known)
    if not known:
        print(
            f"guard: the counts cannot be compared, because they were recorded with Python "
            f"{record['python']}, and this is Python {python}: use that version, or record "
            "the counts of this version with --write"
        )
        return 0
    missing = [flow for flow in flows if flow not in known]
    if missing:
        sys.exit(
            f"guard: {BASELINE} has no recorded count of {', '.join(missing)}; "
            "record them with --write"
        )
    return compare(counts, known)


if __name__ == "__main__":
    sys.exit(main())
