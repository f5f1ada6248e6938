"""Helm and kubeconform, built by Go, and the schemas of Kubernetes and of the Prometheus operator.

The schemas come from the Go modules of both projects. Go downloads the modules from its module
proxy, and compares them with its database of checksums.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "packaging" / "helm" / "trellis"
EXAMPLES: Final = CHART.parent / "examples"
#: Modules whose schemas the rendered objects must fit.
KUBERNETES: Final = "k8s.io/kubernetes@v1.36.3"
OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
#: The kinds of Kubernetes objects that the chart renders, and the API package of each kind.
KINDS: Final = {
    "ConfigMap": "core.v1",
    "Job": "batch.v1",
    "PodDisruptionBudget": "policy.v1",
    "Secret": "core.v1",
    "Service": "core.v1",
    "StatefulSet": "apps.v1",
}
#: Custom resources of the Prometheus operator that the chart renders.
CUSTOM: Final = ("servicemonitors", "prometheusrules")
#: Seconds that the download of a module, and a run of a program, may take.
DOWNLOADING, RUNNING = 600, 60


@cache
def program(name: str, package: str) -> str:
    """Build a program of tests/go/helm unless it is built, and return its path.

    Skip the test if the build fails. The first build takes 3 CPU minutes.
    """
    path = BUILT / name
    directory = ROOT / "tests" / "go" / "helm"
    if path.exists() and path.stat().st_mtime > (directory / "go.sum").stat().st_mtime:
        return str(path)
    built = f"{path}-{os.getpid()}"
    build([require("go"), "build", "-o", built, package], directory)
    os.replace(built, path)
    return str(path)


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm with these arguments, and return its result."""
    path = program("helm", "helm.sh/helm/v3/cmd/helm")
    # Helm built by `go build` assumes Kubernetes 1.20 unless the version is given.
    command = [path, *map(str, words), "--kube-version", KUBERNETES.partition("@")[2]]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUNNING, check=False)


def render(*words: str | Path) -> str:
    """Return the objects of the release `trellis` in the namespace `messaging` as YAML.

    `words` are further arguments of `helm template`, such as `--values FILE`.
    """
    done = helm("template", "trellis", CHART, "--namespace", "messaging", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(manifests: str) -> str:
    """Compare rendered objects with the schemas; return the errors that kubeconform prints."""
    path = program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform")
    location = f"{schemas()}/{{{{.ResourceKind}}}}.json"
    command = [path, "-strict", "-summary", "-schema-location", location]
    done = subprocess.run(
        command, input=manifests, capture_output=True, text=True, timeout=RUNNING, check=False
    )
    assert "Summary" in done.stdout, done.stdout + done.stderr
    return "" if done.returncode == 0 else done.stdout + done.stderr


@cache
def schemas() -> Path:
    """Write a JSON schema for each kind that the chart may render; return their directory."""
    directory = BUILT / "kubernetes-schemas"
    directory.mkdir(parents=True, exist_ok=True)
    for kind, schema in (*_of_kubernetes(), *_of_operator()):
        written = directory / f"{kind.lower()}.json-{os.getpid()}"
        written.write_text(json.dumps(schema))
        os.replace(written, directory / f"{kind.lower()}.json")
    return directory


def _of_kubernetes() -> Iterator[tuple[str, Any]]:
    """Yield the name and the schema of each kind of KINDS, from the API's OpenAPI description."""
    text = (_module(KUBERNETES) / "api" / "openapi-spec" / "swagger.json").read_text()
    definitions = json.loads(text)["definitions"]
    for kind, name in KINDS.items():
        used = _used(definitions, f"io.k8s.api.{name}.{kind}")
        yield kind, {"$ref": f"#/definitions/io.k8s.api.{name}.{kind}", "definitions": used}


def _used(definitions: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the definition with this name, and all definitions to which it refers."""
    used: dict[str, Any] = {}
    names = [name]
    while names:
        name = names.pop()
        if name not in used:
            used[name] = _strict(definitions[name])
            names += re.findall(r'"#/definitions/([^"]+)"', json.dumps(definitions[name]))
    return used


def _of_operator() -> Iterator[tuple[str, Any]]:
    """Yield the name and the schema of custom resources of the Prometheus operator."""
    directory = _module(OPERATOR) / "example" / "prometheus-operator-crd"
    for name in CUSTOM:
        text = (directory / f"monitoring.coreos.com_{name}.yaml").read_text()
        resource = yaml.safe_load(text)["spec"]
        [version] = [one for one in resource["versions"] if one["name"] == "v1"]
        yield resource["names"]["kind"], _strict(version["schema"]["openAPIV3Schema"])


def _strict(schema: Any) -> Any:
    """Return a copy of a schema that refuses unknown properties, as the API server does.

    A field of the format int-or-string may be a string or an integer; JSON Schema does not know
    this format.
    """
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    strict = {key: _strict(value) for key, value in schema.items()}
    open_ = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_:
        strict.setdefault("additionalProperties", False)
    return strict


def _module(name: str) -> Path:
    """Download a Go module, and return its directory; skip the test if the download fails."""
    command = [require("go"), "mod", "download", "-json", name]
    done = subprocess.run(
        command, cwd=BUILT, capture_output=True, text=True, timeout=DOWNLOADING, check=False
    )
    if done.returncode:
        pytest.skip(f"go cannot download {name}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return Path(json.loads(done.stdout)["Dir"])
