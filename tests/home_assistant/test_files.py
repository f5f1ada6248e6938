"""The files of the app obey the rules of Home Assistant, and agree with the project."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from tests.home_assistant.running import APP
from tests.kubernetes.programs import ROOT
from trellis.settings import Settings

CONFIG: Final[dict[str, Any]] = yaml.safe_load((APP / "config.yaml").read_text())
PORT: Final = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "null"}]}
#: The rules of Home Assistant for the keys that config.yaml uses (developer documentation of apps,
#: page Configuration, and the schema of the Supervisor, 2026.4). Keys with their default value are
#: omitted, as Home Assistant's linter requires.
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "version", "slug", "description", "arch"],
    "properties": {
        "name": {"type": "string"},
        "version": {"type": "string"},
        "slug": {"pattern": "^[-_.A-Za-z0-9]+$"},
        "description": {"type": "string"},
        "arch": {"type": "array", "items": {"enum": ["aarch64", "amd64"]}},
        "startup": {"enum": ["initialize", "system", "services", "once"]},
        "stage": {"enum": ["experimental", "deprecated"]},
        "backup": {"const": "cold"},
        "timeout": {"type": "integer", "minimum": 11, "maximum": 300},
        "services": {"items": {"pattern": "^(mqtt|mysql):(provide|want|need)$"}},
        "discovery": {"items": {"type": "string"}},
        "map": {
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type"],
                "properties": {"type": {"enum": ["ssl", "addon_config", "share", "media"]}},
            }
        },
        "webui": {"pattern": r"^https?://\[HOST\]:\[PORT:\d+\].*$"},
        "ports": {"patternProperties": {r"^\d+/(tcp|udp)$": PORT}, "additionalProperties": False},
        "ports_description": {"additionalProperties": {"type": "string"}},
        "options": {"type": "object"},
        "schema": {"type": "object", "additionalProperties": {"$ref": "#/definitions/element"}},
    },
    "definitions": {
        "type": {
            "type": "string",
            "pattern": r"^(bool|email|url|port|str|password|int|float|match\(.*\)|list\(.+\))\??$",
        },
        "element": {
            "anyOf": [
                {"$ref": "#/definitions/type"},
                {"type": "object", "additionalProperties": {"$ref": "#/definitions/element"}},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {
                        "anyOf": [
                            {"$ref": "#/definitions/type"},
                            {
                                "type": "object",
                                "additionalProperties": {"$ref": "#/definitions/element"},
                            },
                        ]
                    },
                },
            ]
        },
    },
}


def test_config_fits_the_rules_of_home_assistant() -> None:
    jsonschema.validate(CONFIG, SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"services": ["mqtt:offer"]},
        {"ports": {"1883": 1883}},
        {"schema": {"logins": "text"}},
        {"schema": {"logins": [["str"]]}},
        {"startup": "early"},
        {"watchdog": "tcp://[HOST]:1883"},  # Replaced by the HEALTHCHECK of the image.
    ],
)
def test_rules_refuse(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**CONFIG, **wrong}, SCHEMA)


def test_options_fit_their_schema_and_the_program() -> None:
    """Each option of the schema is a field of the program's options, with the same default."""
    sys.path.insert(0, str(APP))
    try:
        from addon.options import ENCRYPTED, PLAIN, AppLogin, Options
    finally:
        sys.path.remove(str(APP))
    schema, defaults = CONFIG["schema"], CONFIG["options"]
    assert set(schema) == set(Options.__struct_fields__)
    [login] = schema["logins"]
    assert set(login) == set(AppLogin.__struct_fields__)
    required = {name for name, kind in schema.items() if not str(kind).endswith("?")}
    assert set(defaults) == required
    given = {name: getattr(Options(), name) for name in defaults}
    assert {**given, "logins": list(given["logins"])} == defaults
    settings = Settings()
    ports = {f"{getattr(settings, name).port}/tcp" for name in (*PLAIN, *ENCRYPTED)}
    assert set(CONFIG["ports"]) == set(CONFIG["ports_description"]) == ports


def test_translations_name_each_option_and_port() -> None:
    translation = yaml.safe_load((APP / "translations" / "en.yaml").read_text())
    assert set(translation["configuration"]) == set(CONFIG["schema"])
    assert translation["network"] == CONFIG["ports_description"]
    for entry in translation["configuration"].values():
        assert set(entry) == {"name", "description"}


def test_version_is_that_of_the_broker() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dockerfile = (APP / "Dockerfile").read_text()
    assert CONFIG["version"] == project["version"]
    # The image installs the wheel in the app by its path, never by a name in an index.
    assert "/tmp/app/wheels/trellis_broker-*.whl" in dockerfile
    assert "trellis-broker" not in dockerfile


def test_image_has_a_base_image_of_its_own() -> None:
    """The Dockerfile names its base image, and no file build.yaml does.

    Since 2026.4, the Supervisor passes no base image to the Dockerfile, and warns about a file
    build.yaml.
    """
    dockerfile = (APP / "Dockerfile").read_text()
    assert "BUILD_FROM" not in dockerfile
    assert not list(APP.glob("build.*"))
    [base] = re.findall(r"^FROM (\S+)$", dockerfile, re.MULTILINE)
    assert base in (ROOT / "Dockerfile").read_text()
    assert f"python{base.partition(':')[2].removesuffix('-slim')}/site-packages" in dockerfile


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, APP / "Dockerfile"], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0
