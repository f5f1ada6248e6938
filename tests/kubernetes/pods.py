"""Runs the pods of the rendered chart as processes, with their files, variables and arguments."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests import forks
from tests.broker import environment
from tests.cluster.nodes import NodeProcess
from trellis.settings import Settings, load_with_sources

#: Contents of Secrets that exist before the release: name of the Secret -> key -> bytes.
Secrets = Mapping[str, Mapping[str, bytes]]


class Release:
    """The objects of a rendered release."""

    def __init__(self, manifests: str, secrets: Secrets | None = None) -> None:
        self.objects: list[dict[str, Any]] = [one for one in yaml.safe_load_all(manifests) if one]
        self._secrets = secrets or {}

    def one(self, kind: str, name: str = "trellis") -> dict[str, Any]:
        """Return the object of this kind and name."""
        [match] = [
            one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)
        ]
        return match

    def kinds(self) -> set[str]:
        """Return the kinds of all objects."""
        return {one["kind"] for one in self.objects}

    @property
    def pod(self) -> dict[str, Any]:
        """The specification of the broker's pods."""
        spec: dict[str, Any] = self.one("StatefulSet")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        """The specification of the broker's container."""
        [container] = self.pod["containers"]
        assert isinstance(container, dict)
        return container

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path in the container and the content of each mounted file."""
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            for key, content in self._content(volume).items():
                yield f"{mount['mountPath']}/{key}", content

    def _content(self, volume: Mapping[str, Any]) -> dict[str, bytes]:
        """Return file name -> content of the volume's ConfigMap or Secret; {} for other volumes."""
        if "configMap" in volume:
            data = self.one("ConfigMap", volume["configMap"]["name"])["data"]
            return {key: text.encode() for key, text in data.items()}
        if "secret" not in volume:
            return {}
        name = volume["secret"]["secretName"]
        if name in self._secrets:
            return dict(self._secrets[name])
        secret = self.one("Secret", name)
        encoded = {key: base64.b64decode(text) for key, text in secret.get("data", {}).items()}
        return encoded | {key: text.encode() for key, text in secret.get("stringData", {}).items()}

    def variables(self, pod: str) -> dict[str, str]:
        """Return the environment variables of the container in the pod with this name."""
        fields = {"metadata.name": pod}
        return {
            variable["name"]: variable["value"]
            if "value" in variable
            else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            for variable in self.container["env"]
        }


class Pod:
    """A pod of a release, run as a process: a directory stands for the container's root."""

    #: Directories of the container that are below the pod's directory.
    MOVED: Final = ("/etc/trellis", "/var/lib/trellis")

    def __init__(self, release: Release, directory: Path, number: int = 0) -> None:
        """Write the files of the pod `trellis-NUMBER` below `directory`."""
        self._directory = directory
        self._release = release
        self._name = f"trellis-{number}"
        for name, content in release.files():
            path = directory / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = name.endswith(".toml")
            path.write_bytes(self._moved(content.decode()).encode() if text else content)
        # The volume as Kubernetes mounts it: its group may write to it, and it is not empty.
        volume = directory / "var/lib/trellis"
        (volume / "lost+found").mkdir(parents=True, mode=0o700)
        volume.chmod(0o2775)

    def _moved(self, text: str) -> str:
        for path in self.MOVED:
            text = text.replace(path, f"{self._directory}{path}")
        return text

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the pod's container."""
        given = self._release.variables(self._name)
        return {name: self._moved(value) for name, value in given.items()}

    def settings(self) -> Settings:
        """Return the settings as the broker in the pod reads them. Raises SettingsError."""
        return load_with_sources(None, self.variables, {}).settings

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command of trellis in the pod; return its exit code, and all of its output."""
        with tempfile.TemporaryFile("w+") as output:
            process = forks.start(
                "trellis",
                *words,
                stdout=output.fileno(),
                stderr=output.fileno(),
                environment=environment() | self.variables,
            )
            code = process.wait(60)
            output.seek(0)
            return code, output.read()

    @contextmanager
    def serve(self, *flags: str) -> Iterator[NodeProcess]:
        """Run the container's command on free ports, with further flags; kill it afterwards."""
        listeners = self.settings().listeners
        free = [word for name in listeners for word in (f"--{name}-port", "0")]
        hosts = [word for name in listeners for word in (f"--{name}-host", "127.0.0.1")]
        process = NodeProcess(
            self._directory,
            "trellis",
            *self._release.container["args"],
            *(*free, *hosts, *flags),
            variables=self.variables,
        )
        try:
            yield process
        finally:
            process.kill()
