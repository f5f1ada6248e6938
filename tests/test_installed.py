"""A broker that `make` installs into .run, and the extras that the first commands of pages add."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.source_tree import ROOT, copy_sources

#: In one process, because each process would make the installation of `tree` anew.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("installed")]
#: Flags for free ports, and no data on disk.
FLAGS: Final = (
    *("--data-dir", ":memory:", "--amqp-port", "0", "--mqtt-port", "0"),
    *("--http-port", "0", "--metrics-port", "0"),
)
PATIENCE: Final = 600.0


def page(name: str) -> str:
    """Return the text of a page of the documentation."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def settings_of(name: str) -> str:
    """Return the first settings of a page: a block of TOML, or indented lines."""
    block = re.search(
        r"^```toml\n(.*?)^```|^(    \[\w+\]\n(?:    [^\n]+\n)+)", page(name), re.M | re.S
    )
    assert block is not None
    return block[1] or textwrap.dedent(block[2])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the broker, uncompiled, into .run of a copy of the sources."""
    tree = tmp_path_factory.mktemp("installed") / "tree"
    copy_sources(tree)
    run(tree, "make", ".run/installed", TRELLIS_PURE="1", PYTHON=sys.executable)
    return tree


def run(tree: Path, *words: str, **variables: str) -> str:
    """Run a command in the copy of the sources, check that it succeeds, and return its output."""
    done = start(tree, *words, **variables)
    out, _ = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, (words, out[-3000:])
    return out


def start(tree: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start a command in the copy of the sources, without the environment's PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        words,
        cwd=tree,
        env=kept | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def expect_extra(tree: Path, name: str, extra: str, *flags: str) -> None:
    """Check that a broker with these flags starts only after an extra is installed.

    The extra is installed by the command of the page `name`.
    """
    serve = (".run/bin/trellis", "serve", *FLAGS, *flags)
    install_after_refusal(tree, name, extra, *serve)
    expect_service(tree, *serve)


def install_after_refusal(tree: Path, name: str, extra: str, *words: str) -> None:
    """Check that a command fails and names the extra that it needs; then install the extra.

    The extra is installed by the command of the page `name`.
    """
    refused = start(tree, *words)
    out, _ = refused.communicate(timeout=PATIENCE)
    assert refused.returncode == 2 and f"pip install 'trellis-broker[{extra}]'" in out, out
    first = re.search(rf"^ *(\.run/bin/pip install 'trellis-broker\[{extra}\]')", page(name), re.M)
    assert first is not None
    run(tree, *shlex.split(first[1]))


def expect_service(tree: Path, *serve: str) -> None:
    """Check that a broker starts with this command, and ends after SIGTERM."""
    broker = start(tree, *serve)
    assert broker.stdout is not None
    lines = []
    for line in broker.stdout:
        lines.append(line)
        if line.startswith("ready "):
            break
    else:
        raise AssertionError("".join(lines))
    broker.terminate()
    broker.communicate(timeout=PATIENCE)
    assert broker.returncode == 0


def test_the_extra_for_opentelemetry(tree: Path) -> None:
    serve = re.search(r"^    trellis serve (.*)$", page("opentelemetry"), re.MULTILINE)
    assert serve is not None
    expect_extra(tree, "opentelemetry", "otel", *shlex.split(serve[1]))


def test_the_extra_for_plugins_of_amqtt(tree: Path, tmp_path: Path) -> None:
    text = re.findall(r"^```toml\n(.*?)^```", page("amqtt-plugins"), re.MULTILINE | re.DOTALL)[0]
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    settings = tmp_path / "broker.toml"
    settings.write_text(text.replace("/etc/trellis/passwords", str(passwords)))
    expect_extra(tree, "amqtt-plugins", "amqtt", "--config", str(settings))


def test_the_extra_for_bridges(tree: Path, tmp_path: Path) -> None:
    settings = tmp_path / "bridge.toml"
    settings.write_text(settings_of("bridges"))
    expect_extra(tree, "bridges", "bridge", "--config", str(settings))


def test_the_extra_for_tokens(tree: Path, tmp_path: Path) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text(settings_of("tokens"))
    expect_extra(tree, "tokens", "jwt", "--config", str(settings))


def test_the_extra_for_connectors(tree: Path, tmp_path: Path) -> None:
    settings = tmp_path / "connect.toml"
    settings.write_text(settings_of("connectors"))
    check = (".run/bin/trellis", "connect", str(settings), "--check")
    install_after_refusal(tree, "connectors", "connect", *check)
    assert "orders" in run(tree, *check)


def test_the_extra_for_asyncapi(tree: Path, tmp_path: Path) -> None:
    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"vhosts": [{"name": "/"}]}')
    command = re.search(r"^    trellis (asyncapi --journal none .*)$", page("asyncapi"), re.M)
    assert command is not None
    words = command[1].replace("definitions.json", str(definitions)).split()
    install_after_refusal(tree, "asyncapi", "asyncapi", ".run/bin/trellis", *words)
    assert run(tree, ".run/bin/trellis", *words).startswith("asyncapi: 3.0.0")


def test_the_extra_for_a_server_in_a_new_environment(tree: Path, tmp_path: Path) -> None:
    """Check that `server` has the packages of bridges, tokens, OpenTelemetry and connectors."""
    readme = (ROOT / "README.md").read_text()
    command = re.search(r"\(`pip\s+install\s+'(dist/\S+\.whl)\[bridge\]'`\)", readme)
    assert command is not None
    (wheel,) = (tree / "dist").glob(f"{command[1].partition('-cp')[0].removeprefix('dist/')}-*.whl")
    run(tree, sys.executable, "-m", "venv", str(tmp_path / "new"))
    run(tree, str(tmp_path / "new/bin/pip"), "install", "--quiet", f"{wheel}[server]")
    settings = tmp_path / "broker.toml"
    settings.write_text(settings_of("bridges") + settings_of("tokens"))
    opentelemetry = re.search(r"^    trellis serve (.*)$", page("opentelemetry"), re.MULTILINE)
    assert opentelemetry is not None
    trellis = str(tmp_path / "new/bin/trellis")
    flags = ("--config", str(settings), *shlex.split(opentelemetry[1]))
    expect_service(tree, trellis, "serve", *FLAGS, *flags)
    links = tmp_path / "connect.toml"
    links.write_text(settings_of("connectors"))
    assert "orders" in run(tree, trellis, "connect", str(links), "--check")


def test_the_first_commands_of_the_page_about_tests(tree: Path, tmp_path: Path) -> None:
    """Check that pytest finds the fixtures in an environment with the wheel, without an option."""
    first = re.search(
        r"^    pip install dist/(trellis_broker-[\d.]+)-\S+ (pytest)\b.*\n    (pytest)$",
        page("testing"),
        re.MULTILINE,
    )
    assert first is not None
    (wheel,) = (tree / "dist").glob(f"{first[1]}-*.whl")
    run(tree, ".run/bin/pip", "install", str(wheel), first[2], "pika")
    example = re.search(r"^## pika\n\n```python\n(.*?)^```", page("testing"), re.M | re.S)
    assert example is not None
    (tmp_path / "test_it.py").write_text(example[1])
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert "1 passed" in run(tmp_path, str(tree / ".run/bin" / first[3]))
