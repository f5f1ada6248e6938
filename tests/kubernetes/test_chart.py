"""The files of packaging/helm agree with the project. These tests need neither Helm nor Go."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

import jsonschema
import pytest
import yaml

from tests.kubernetes.programs import CHART, EXAMPLES, ROOT
from trellis.settings import Settings

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VALUES: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return `values` overridden by the values in `more`, merged as Helm merges values files."""
    result = dict(values)
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


def test_version_is_that_of_the_broker() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    assert VALUES["image"]["repository"] == PROJECT["name"]


def test_default_values_and_examples_fit_the_schema() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    examples = sorted(EXAMPLES.glob("*.yaml"))
    assert len(examples) == 4
    for example in examples:
        jsonschema.validate(merged(VALUES, yaml.safe_load(example.read_text())), SCHEMA)


def test_schema_knows_each_value() -> None:
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}
    for name, value in VALUES.items():
        known = SCHEMA["properties"][name].get("properties")
        if isinstance(value, dict) and known is not None:
            assert set(known) == set(value), name


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": {"enabled": True}},
        {"cluster": {"nodes": 1}},
        {"cluster": {"servers": "kafka"}},
        {"cluster": {"servers": "kafka-1:9092, kafka-2:9092"}},
        {"listeners": {"mqtt": {"port": 0}}},
        {"listeners": {"stomp": {"enabled": True}}},
        {"auth": {"password": "two\nlines"}},
        {"persistence": {"size": "twenty"}},
        {"settings": {"limits": {"connections": 5}}},
        {"service": {"type": "ExternalName"}},
    ],
    ids=json.dumps,
)
def test_schema_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(VALUES, wrong), SCHEMA)


def test_default_ports_are_those_of_the_broker() -> None:
    defaults = Settings()
    for name, listener in VALUES["listeners"].items():
        assert listener["port"] == getattr(defaults, name).port, name


def test_alerts_are_those_of_the_project() -> None:
    alerts = ROOT / "config" / "prometheus" / "rules" / "trellis.yml"
    assert (CHART / "files" / "alerts.yml").resolve() == alerts


def test_image_has_the_user_of_the_pods() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    template = (CHART / "templates" / "_container.tpl").read_text()
    assert "USER 10001:10001" in dockerfile
    assert re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", template) == ["10001"] * 3
