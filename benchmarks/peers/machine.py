"""Describes the machine on which figures were measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the properties of the machine that affect figures, such as processor and kernel."""
    return {
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "processors": str(
            os.process_cpu_count()
            if hasattr(os, "process_cpu_count")
            else len(os.sched_getaffinity(0))
        ),
        "memory": f"{int(_line('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "system": _release(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
        "load before": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }


def busy() -> str:
    """Return a warning if other work seems to run on the machine; else an empty string."""
    load = os.getloadavg()[0]
    if load < 0.5:
        return ""
    return f"load average {load:.1f}: other work runs on this machine, so figures will be noisy"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _line(path: str, name: str) -> str:
    """Return the value of the first line `name: value` in a file."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _release() -> str:
    for line in _text("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.platform()
