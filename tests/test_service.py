"""Tests of the systemd unit and of the Debian package."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.foreign import require
from tests.source_tree import copy_sources
from tests.systemd.booted import BootedSystem, can_boot

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = (ROOT / "docs" / "service.md").read_text()
UNIT: Final = ROOT / "packaging" / "systemd" / "trellis.service"
INSTANCES: Final = UNIT.with_name("instances.sed")
#: The largest exposure that `systemd-analyze security` may find, in tenths of its scale of 10.
EXPOSURE_MAX: Final = 20
PATIENCE: Final = 60.0


def run(*command: str | Path, timeout: float = 1_500.0) -> str:
    """Run a command, check that it succeeds, and return its output."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_unit_exposes_little_of_the_machine() -> None:
    require("systemd-analyze")
    text = run("systemd-analyze", "security", "--offline=true", "--no-pager", UNIT)
    match = re.search(r"Overall exposure level for trellis.service: ([\d.]+)", text)
    assert match is not None
    assert float(match[1]) * 10 <= EXPOSURE_MAX


@pytest.mark.parametrize("name", ["trellis.service", "trellis@plant-a.service"])
def test_unit_has_only_directives_that_systemd_knows(name: str, tmp_path: Path) -> None:
    require("systemd-analyze")
    unit = tmp_path / name
    text = UNIT.read_text() if name == UNIT.name else template()
    text = text.replace("/usr/bin/trellis", sys.executable)
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if name in line]
    assert complaints == []


def template() -> str:
    """Return the template unit trellis@.service, made from the unit as in the Debian package."""
    return run("sed", "-f", INSTANCES, UNIT)


def test_each_instance_has_its_own_settings_variables_and_data() -> None:
    text, unit = template().splitlines(), UNIT.read_text().splitlines()
    changed = [line for line in text if line not in unit and not line.startswith("#")]
    assert changed == [
        "Description=Trellis message broker %i (AMQP 0-9-1 and MQTT)",
        "ExecStart=/usr/bin/trellis serve --config /etc/trellis/%i.toml",
        "EnvironmentFile=-/etc/default/trellis-%i",
        "StateDirectory=trellis-%i",
    ]


@contextmanager
def root_directory(path: Path) -> Iterator[Path]:
    """Yield a minimal Debian system in a directory, with /proc mounted."""
    packages = "python3,ca-certificates,systemd,dbus"
    run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", path)
    shutil.copy("/etc/resolv.conf", path / "etc/resolv.conf")
    for name in ("sources.list", "sources.list.d", "apt.conf.d"):
        own, there = Path("/etc/apt") / name, path / "etc/apt" / name
        if own.is_dir():
            shutil.copytree(own, there, dirs_exist_ok=True)
        elif own.exists():
            shutil.copy(own, there)
    run("mount", "-t", "proc", "proc", path / "proc")
    try:
        yield path
    finally:
        run("umount", path / "proc")


def commands_of_page(heading: str, block: int = 0) -> list[str]:
    """Return the lines of an indented block below a heading of the page, without comments."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .+\n)+", section, re.MULTILINE)
    return [line.partition(" # ")[0].strip() for line in blocks[block].splitlines()]


def build_package(tree: Path) -> Path:
    """Build the package in a copy of the sources with the first commands of the page."""
    copy_sources(tree)
    make, build = commands_of_page("Debian and Ubuntu: a package")
    pip = f"{sys.executable} -m pip"
    variables = ("env", f"PIP={pip}", f"PYTHON={sys.executable}", "TRELLIS_PURE=1")
    run("env", "-C", tree, *variables, *make.split())
    (wheel,) = (tree / "dist").glob("*.whl")
    script, named, directory = build.split()
    assert named.startswith(f"dist/{wheel.name.partition('-py3')[0]}-cp311-")
    run("env", "-C", tree, *variables, script, wheel, directory)
    (install,) = commands_of_page("Debian and Ubuntu: a package", 1)
    (package,) = (tree / "dist").glob("trellis-broker_*.deb")
    assert install == f'sudo apt-get install "$PWD"/dist/{package.name}'
    return package


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for chroot")
def test_debian_package_installs_serves_and_is_removed_without_a_trace(tmp_path: Path) -> None:
    require("debootstrap")
    python = shutil.which("python3", path="/usr/bin")
    assert python is not None
    version = run(python, "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()
    if version != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"the tests run on another Python than Debian's {version}")
    if not can_boot():
        pytest.skip("this process may not make namespaces or mount control groups (cgroup2)")
    package = build_package(tmp_path / "tree")
    with root_directory(tmp_path / "root") as root:
        shutil.copy(package, root / "tmp/trellis.deb")
        install = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "-qq")
        run("chroot", root, "apt-get", "update", "-qq")
        run("chroot", root, *install, "--no-install-recommends", "/tmp/trellis.deb")
        assert "0.1.0" in run("chroot", root, "trellis", "version")
        assert (root / "lib/systemd/system/trellis.service").exists()
        assert (root / "lib/systemd/system/trellis@.service").read_text() == template()
        assert (root / "etc/systemd/system/multi-user.target.wants/trellis.service").is_symlink()
        assert run("chroot", root, "stat", "-c", "%U %G %a", "/etc/default/trellis").split() == [
            *("root", "root", "600")
        ]
        serve_once(root)
        run("chroot", root, "rm", "-r", "/var/lib/trellis")
        system = BootedSystem(root)
        try:
            serve_under_systemd(system)
            system.run("apt-get", "purge", "--yes", "-qq", "trellis-broker")
            assert system.properties("trellis", "LoadState") == ["not-found"]
        finally:
            system.close()
        for left in ("usr/lib/trellis", "usr/bin/trellis", "etc/trellis", "var/lib/trellis"):
            assert not (root / left).exists(), left


def serve_under_systemd(system: BootedSystem) -> None:
    """Check what the page says about the service, in a system that has booted."""
    # The service has started with the machine.
    state, status = system.properties("trellis", "ActiveState", "StatusText")
    assert state == "active" and status.startswith("ready amqp=127.0.0.1:5672 ")
    assert system.run("stat", "-c", "%U %a", "/var/lib/trellis").split() == ["trellis", "700"]
    system.run("trellis", "queues", "declare", "orders")
    system.run("trellis", "publish", "amq.default", "orders", "--body", "hello", "--persistent")
    with system.log("trellis") as log:
        for command in commands_of_page("The service"):
            system.run(*command.split())
        log.wait(" info reloaded ")
    report = system.run("systemd-analyze", "security", "--no-pager", "trellis")
    exposure = re.search(r"Overall exposure level for trellis.service: ([\d.]+)", report)
    assert exposure is not None and float(exposure[1]) * 10 <= EXPOSURE_MAX

    # Crashes, more than the five in 10 s after which systemd gives up by default.
    for _ in range(7):
        restart(system, lambda: system.kill("trellis", signal.SIGKILL))
    assert "hello" in system.run("trellis", "peek", "orders")

    # A hung event loop, with a shorter time than the 60 s of the unit.
    system.run("mkdir", "/run/systemd/system/trellis.service.d")
    drop_in = "/run/systemd/system/trellis.service.d/watchdog.conf"
    system.run("sh", "-c", f"printf '[Service]\\nWatchdogSec=2\\n' > {drop_in}")
    system.run("systemctl", "daemon-reload")
    system.run("systemctl", "restart", "trellis")
    restart(system, lambda: system.kill("trellis", signal.SIGSTOP), "result 'watchdog'")

    # A wrong setting: exit code 2, and no restart.
    system.run("cp", "/etc/trellis/broker.toml", "/root")
    system.run("sh", "-c", "printf '[amqp]\\nprot = 1\\n' >> /etc/trellis/broker.toml")
    with system.log("trellis") as log:
        assert system.try_to("systemctl", "restart", "trellis").returncode == 1
        log.wait("trellis: /etc/trellis/broker.toml: amqp.prot: unknown key")
    found_state = system.properties("trellis", "SubState", "ExecMainStatus", "NRestarts")
    assert found_state == ["failed", "2", "0"]
    system.run("cp", "/root/broker.toml", "/etc/trellis/broker.toml")
    system.run("systemctl", "start", "trellis")

    # A second broker (docs/several-brokers.md).
    settings = "[amqp]\nport = 5772\n[mqtt]\nport = 1983\n[http]\nport = 0\n[metrics]\nport = 0\n"
    data = '[data]\ndir = "/var/lib/trellis-plant-a"\n'
    system.run("sh", "-c", f"printf '{settings}{data}' > /etc/trellis/plant-a.toml")
    system.run("systemctl", "enable", "--now", "trellis@plant-a")
    assert system.properties("trellis@plant-a", "ActiveState") == ["active"]
    system.run("systemctl", "disable", "--now", "trellis@plant-a")
    assert system.properties("trellis@plant-a", "Result") == ["success"]
    # The purge of the package leaves the files of further brokers.
    system.run("rm", "/etc/trellis/plant-a.toml")


def restart(system: BootedSystem, fail: Callable[[], None], reason: str = "") -> None:
    """Make the broker fail, and wait until systemd has started the broker again.

    `reason` is the text of the log line to expect first; "" expects the end of the main process.
    """
    with system.log("trellis") as log:
        fail()
        log.wait(reason or "Main process exited")
        log.wait("Started trellis.service")
    assert system.properties("trellis", "ActiveState") == ["active"]


def serve_once(root: Path) -> None:
    """Serve as the user of the package, publish a message to a queue, peek at it, and stop."""
    run("chroot", root, "install", "-d", "-o", "trellis", "-m", "700", "/var/lib/trellis")
    words = ["chroot", "--userspec=trellis:trellis", str(root), "trellis", "serve"]
    ports = [f"--{name}-port=0" for name in ("amqp", "mqtt", "metrics", "http")]
    flags = ["--config", "/etc/trellis/broker.toml", *ports, "--http-enabled", "true"]
    with (root / "tmp/log").open("w") as log:
        broker = subprocess.Popen([*words, *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            assert ready.startswith("ready "), (root / "tmp/log").read_text()
            addresses = dict(word.split("=") for word in ready.split()[1:])
            trellis = ("chroot", root, "trellis")
            url = ("--url", f"http://{addresses['http']}")
            run(*trellis, "queues", "declare", "orders", *url)
            run(*trellis, "publish", "amq.default", "orders", "--body", "hello", *url)
            assert "hello" in run(*trellis, "peek", "orders", *url)
        finally:
            broker.terminate()
            assert broker.wait(PATIENCE) == 0
    assert list((root / "var/lib/trellis").iterdir())
