"""Tests that the documents are true: links, generated pages, commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.store.catalog import VERSION
from trellis.cli import parser

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("[!.]*/README.md")),
]


def test_page_of_metrics_equals_the_export_of_a_broker() -> None:
    process = subprocess.run(
        [sys.executable, "tools/metrics_page.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert process.stdout == (ROOT / "docs" / "metrics.md").read_text(), (
        "run: python tools/metrics_page.py > docs/metrics.md"
    )


def test_page_about_rabbitmq_equals_the_tables_of_the_import() -> None:
    process = subprocess.run(
        [sys.executable, "tools/moving_page.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert process.stdout == (ROOT / "docs" / "moving-from-rabbitmq.md").read_text(), (
        "run: python tools/moving_page.py > docs/moving-from-rabbitmq.md"
    )


def test_page_of_conformance_equals_the_marks_of_the_tests() -> None:
    process = subprocess.run(
        [sys.executable, "tools/conformance_page.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert process.stdout == (ROOT / "docs" / "mqtt-conformance.md").read_text(), (
        "run: python tools/conformance_page.py > docs/mqtt-conformance.md"
    )


def test_page_about_mosquitto_equals_the_table_of_the_import() -> None:
    process = subprocess.run(
        [sys.executable, "tools/mosquitto_page.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert process.stdout == (ROOT / "docs" / "moving-from-mosquitto.md").read_text(), (
        "the tables of options have changed: see tools/mosquitto_page.py"
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_are_installed_from_the_checkout(document: Path) -> None:
    """Check that documents install Trellis's packages with the pip of the checkout (.run) only.

    No package index has these packages, so a stranger may register their names there. In .run,
    `make run` has installed the broker, so pip only adds the packages of an extra.
    """
    for line in document.read_text().splitlines():
        for command in re.findall(r"(\S*pip) install ['\"]?trellis-(?:broker|pyspark)", line):
            assert command.lstrip("`(").startswith(".run/bin/"), line


def test_page_about_storage_has_the_schema_version_of_the_catalog() -> None:
    page = (ROOT / "docs" / "storage.md").read_text()
    assert f"`catalog.sqlite` has schema version {VERSION} and" in page


def test_commands_in_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", readme, re.MULTILINE):
        assert target in targets
    commands = parser().format_help()
    for command in re.findall(
        r"trellis (serve|version|config|check-config|hash-password|health|list)\b", readme
    ):
        assert command in commands
    for script in re.findall(r"(examples/\w+\.py)", readme):
        assert (ROOT / script).exists(), script


def test_flags_of_make_run_in_the_readme_exist() -> None:
    commands = re.findall(r'^    make run ARGS="([^"]*)"', (ROOT / "README.md").read_text(), re.M)
    assert commands
    for flags in commands:
        parser().parse_args(["serve", *flags.split()])


def test_changelog_has_the_reasons_of_the_recorded_counts() -> None:
    """Check that CHANGELOG.md has each reason in benchmarks/guard.json, word for word.

    `make guard` makes the same check, but needs a compiled broker.
    """
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    reasons = json.loads((ROOT / "benchmarks" / "guard.json").read_text())["why"]
    assert reasons
    assert [why for why in set(reasons.values()) if why not in changelog] == []
