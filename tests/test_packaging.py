"""The files around the code agree: build, image, compose, workflows of the forge, Makefile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from setuptools import Distribution, Extension

import trellis
from tests.source_tree import load_program
from trellis.cli.version import conflicts
from trellis.cluster.check import LEASE_MARGIN, SILENCE_MARGIN
from trellis.demo.kafka_jars import VERSION
from trellis.settings import Settings, load_with_sources

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONNECTOR: dict[str, Any] = tomllib.loads((ROOT / "connector" / "pyproject.toml").read_text())[
    "project"
]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"

PACKAGES = ("matching", "broker", "protocols", "trellis", "pyspark_trellis")


def _sources() -> list[str]:
    return [
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.py")
    ]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture
def setup_py(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_program(ROOT / "setup.py", monkeypatch)


@pytest.fixture
def compiled_modules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_program(ROOT / "build_backend" / "compiled_modules.py", monkeypatch)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_program(ROOT / "build_backend" / "trellis_build.py", monkeypatch)


# -- compiled modules


def test_every_module_below_trellis_is_compiled_or_left_out_with_a_reason(
    compiled_modules: ModuleType,
) -> None:
    below = {path for path in _sources() if not path.startswith(("trellis/", "pyspark_trellis/"))}
    left_out = {
        path
        for path in below
        if any(fnmatch(path, pattern) for pattern in compiled_modules.LEFT_OUT)
    }
    hot = {path for path in compiled_modules.COMPILED if path.endswith(".py")}
    assert set(compiled_modules.modules()) == (below - left_out) | hot
    assert all(reason for reason in compiled_modules.LEFT_OUT.values())


def test_names_to_compile_and_to_leave_out_exist(compiled_modules: ModuleType) -> None:
    assert [name for name in compiled_modules.COMPILED if not (ROOT / name).exists()] == []
    for pattern in compiled_modules.LEFT_OUT:
        assert any(fnmatch(path, pattern) for path in _sources()), pattern
    assert compiled_modules.small_modules() - set(compiled_modules.modules()) == set()


def test_each_c_file_is_included_once_and_small_modules_apart(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup_py, "COMBINED_BYTES", 25)
    small = ["broker/alarms.py", "broker/patterns.py"]
    monkeypatch.setattr(setup_py, "small_modules", lambda: small)
    fast = ["broker/agenda.py", "broker/limits.py", "matching/trie.py"]
    names = [f"__native_{path[:-3].replace('/', '___')}.c" for path in (*small, *fast)]
    for name in names:
        Path(name).write_text("int some_code;\n")
    sources = setup_py.combined(["init.c", *names])
    assert sources[0] == "init.c"
    assert [Path(name).name.split("_")[0] for name in sources[1:]] == ["fast", "fast", "small"]
    included = [re.findall('"(.+)"', Path(name).read_text()) for name in sources[1:]]
    assert included == [names[2:4], names[4:], names[:2]]


def test_functions_that_run_rarely_are_marked(setup_py: ModuleType, tmp_path: Path) -> None:
    header = tmp_path / "__native_internal_trellis.h"
    header.write_text(
        "extern char CPyDef_agenda_____top_level__(void);\n"
        "extern PyObject *CPyPy_agenda___run(PyObject *self, PyObject *kwnames);\n"
        "extern char CPyDef_agenda___run(void);\n"
    )
    setup_py.make_rare_functions_small(tmp_path)
    marks = [line.partition(" __attribute__")[2] for line in header.read_text().splitlines()]
    assert marks == ["((cold));", '((optimize("Os")));', ""]
    header.write_text("extern char CPyDef_agenda___run(void);\n")
    with pytest.raises(ValueError, match="declares no function"):
        setup_py.make_rare_functions_small(tmp_path)


def test_missing_headers_are_named(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python.h is missing" in setup_py.obstacle()


def test_a_missing_compiler_is_named(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    assert "the C compiler no-such-compiler is missing" in setup_py.obstacle()


def test_an_obstacle_is_a_warning_unless_compiled_modules_are_required(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRELLIS_REQUIRE_COMPILED", raising=False)
    setup_py.fall_back("no compiler")
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("TRELLIS_REQUIRE_COMPILED", "1")
    with pytest.raises(SystemExit, match="cannot compile: no compiler"):
        setup_py.fall_back("no compiler")


def test_one_failed_extension_removes_the_others(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if setup_py.obstacle().partition(" is missing")[0] not in ("", "mypyc"):
        pytest.skip(setup_py.obstacle())
    monkeypatch.delenv("TRELLIS_REQUIRE_COMPILED", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("sound.c").write_text(
        "#include <Python.h>\nPyMODINIT_FUNC PyInit_sound(void) { return NULL; }\n"
    )
    Path("broken.c").write_text("this is not C\n")
    extensions = [Extension("sound", ["sound.c"]), Extension("broken", ["broken.c"])]
    command = setup_py.AllOrNothing(Distribution({"name": "x", "ext_modules": extensions}))
    command.ensure_finalized()
    command.run()
    assert command.extensions == []
    assert list(tmp_path.rglob("sound.*.so")) == []


def test_zig_is_required_only_without_a_compiler(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zig_is_wanted() -> bool:
        return any(name.startswith("ziglang") for name in backend.get_requires_for_build_wheel())

    monkeypatch.setattr(backend.build_meta, "get_requires_for_build_wheel", lambda settings: [])
    monkeypatch.setattr(backend.sys, "platform", "linux")
    monkeypatch.setattr(backend.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(backend.Path, "exists", lambda path: True)
    monkeypatch.delenv("TRELLIS_PURE", raising=False)
    monkeypatch.setattr(backend.shutil, "which", lambda name: "/usr/bin/cc")
    assert not zig_is_wanted()
    monkeypatch.setattr(backend.shutil, "which", lambda name: None)
    assert zig_is_wanted()
    monkeypatch.setenv("TRELLIS_PURE", "1")
    assert not zig_is_wanted()


@pytest.mark.parametrize(
    ("machine", "host", "target"),
    [
        ("x86_64", "x86_64-pc-linux-gnu", "x86_64-linux-gnu.2.28"),
        ("aarch64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu.2.28"),
        ("x86_64", "x86_64-alpine-linux-musl", "x86_64-linux-musl"),
    ],
)
def test_zig_compiles_for_this_machine_and_c_library(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, machine: str, host: str, target: str
) -> None:
    monkeypatch.setattr(backend.platform, "machine", lambda: machine)
    monkeypatch.setattr(backend.sysconfig, "get_config_var", lambda name: host)
    assert backend.zig_target() == target


# -- the distribution


def test_versions_of_compilers_are_pinned(backend: ModuleType) -> None:
    """Check that the build requirements name exact versions.

    A source distribution then gives the same C code in later years.
    """
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    required = [*build_system["requires"], *backend.COMPILING, backend.ZIG]
    assert [line for line in required if "==" not in line] == []


def test_compiled_modules_are_stripped_unless_symbols_are_wanted(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRELLIS_SYMBOLS", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    to_compile, to_link = setup_py.debug_options()
    assert "-g0" in to_compile and "-s" in to_link
    monkeypatch.setenv("TRELLIS_SYMBOLS", "1")
    assert setup_py.debug_options() == ([], [])


def test_the_notes_of_a_release_are_its_part_of_the_changelog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = load_program(ROOT / "tools" / "release_notes.py", monkeypatch)
    changelog = "# Changelog\n\n## 1.1.0\n\nnew\n\n### Area\n\n- more\n\n## 1.0.0\n\nold\n"
    assert tool.notes(changelog, "1.1.0") == "new\n\n### Area\n\n- more\n"
    assert tool.notes(changelog, "1.0.0") == "old\n"
    with pytest.raises(ValueError, match=r"'## 2\.0\.0'"):
        tool.notes(changelog, "2.0.0")
    assert tool.notes((ROOT / "CHANGELOG.md").read_text(), PROJECT["version"])


def test_a_loader_asks_the_library_for_itsload_program(
    setup_py: ModuleType, tmp_path: Path
) -> None:
    code = tmp_path / "agenda.c"
    code.write_text('"trellis__mypyc.init_broker___agenda"')
    setup_py.write_loader(Extension("broker.agenda", [str(code)]))
    assert "PyInit_agenda(void)" in code.read_text()
    assert '"trellis__mypyc.init_broker___agenda"' in code.read_text()
    with pytest.raises(ValueError, match="does not load init_broker___limits"):
        setup_py.write_loader(Extension("broker.limits", [str(code)]))


def test_a_compiled_wheel_has_the_source_of_matching_only(
    setup_py: ModuleType, tmp_path: Path
) -> None:
    """Check that a wheel has the source of `matching`, which `trellis pipeline` sends to Spark.

    The source of the other packages would take 0.7 MB.
    """
    names = ["matching/trie.py", "broker/agenda.py", "broker/__init__.py", "trellis/server/turn.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    command = setup_py.AllOrNothing(Distribution({"name": "x"}))
    command.build_lib = str(tmp_path)
    command.leave_out_sources()
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")}
    assert left == {"matching/trie.py", "broker/__init__.py"}


def test_unstripped_modules_of_a_wheel_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = load_program(ROOT / "tools" / "release_check.py", monkeypatch)
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("plain.so", b"\x7fELF .text")
        archive.writestr("symbols.so", b"\x7fELF .symtab")
        archive.writestr("debug.so", b"\x7fELF .debug_info")
        archive.writestr("text.py", b".symtab")
    assert tool.unstripped(wheel) == ["symbols.so", "debug.so"]


def test_another_owner_of_a_package_is_reported() -> None:
    ours = ["trellis-broker"]
    assert conflicts({"broker": ours, "matching": ours, "protocols": ours}) == []
    [warning] = conflicts({"broker": [*ours, "message-broker"], "numpy": ["numpy"]})
    assert "'broker'" in warning
    assert "uninstall message-broker" in warning


def test_supported_pythons_begin_with_the_required_one() -> None:
    minors = [
        int(match[1])
        for line in PROJECT["classifiers"]
        if (match := re.search(r":: 3\.(\d+)$", line))
    ]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"


def test_every_dependency_has_a_lower_bound_and_a_cap() -> None:
    assert [line for line in PROJECT["dependencies"] if not re.search(r">=[\d.]+,<\d+", line)] == []


def test_version_is_the_same_everywhere() -> None:
    assert f"ARG VERSION={PROJECT['version']}\n" in (ROOT / "Dockerfile").read_text()
    image = read_yaml(ROOT / "docker-compose.yml")["services"]["trellis"]["image"]
    assert image == f"{PROJECT['name']}:{PROJECT['version']}"
    testing = (ROOT / "docs" / "testing.md").read_text()
    assert f'DockerContainer("{image}")' in testing and f"docker build -t {image} ." in testing
    assert CONNECTOR["version"] == trellis.__version__ == PROJECT["version"]


def test_trellis_pyspark_needs_what_the_extra_pipeline_needs() -> None:
    """Check that trellis-pyspark and the extra `pipeline` need the same packages, except two.

    The extra also has matplotlib, for plots. trellis-pyspark also needs pyroaring, which is not in
    the extra, because the broker itself depends on it.
    """
    extra = PROJECT["optional-dependencies"]["pipeline"]
    needed = {*CONNECTOR["dependencies"], *CONNECTOR["optional-dependencies"]["spark"]}
    plots = {line for line in extra if line.startswith("matplotlib")}
    roaring = {line for line in PROJECT["dependencies"] if line.startswith("pyroaring")}
    assert needed == (set(extra) - plots) | roaring


# -- the Makefile


def test_make_without_a_target_lists_every_command() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert [
        name
        for name in phony[1].split()
        if name not in ("node", "browser", "FORCE") and f"make {name} " not in listed
    ] == []


def test_long_tests_run_each_comparison_of_the_guard() -> None:
    """Check that `make guard-options` runs each option of the guard that compares two runs."""
    text = (ROOT / "Makefile").read_text()
    options = re.search(r"^GUARD_OPTIONS := (.*)$", text, re.MULTILINE)
    guard = (ROOT / "benchmarks" / "guard.py").read_text()
    assert options is not None
    assert set(options[1].split()) == set(re.findall(r'compare_option\(\w+, "(--\w+)"', guard))
    listed = subprocess.run(
        ["make", "-n", "-o", ".run/installed", "-o", ".venv/installed", "test-long"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "guard.py $option" in listed.stdout


def test_a_missing_python_is_reported(tmp_path: Path) -> None:
    script = [
        shutil.which("sh") or "sh",
        str(ROOT / "tools" / "make-venv.sh"),
        str(tmp_path / "venv"),
    ]
    process = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert process.returncode == 1
    assert "found no Python 3.11 or later" in process.stderr


# -- the workflow of the forge


def _jobs() -> dict[str, Any]:
    jobs: dict[str, Any] = read_yaml(WORKFLOW)["jobs"]
    return jobs


@pytest.mark.parametrize("workflow", [WORKFLOW, RELEASE], ids=lambda path: path.stem)
def test_workflow_fits_its_schema(workflow: Path) -> None:
    schema = ["--builtin-schema", "vendor.github-workflows"]
    check = [sys.executable, "-m", "check_jsonschema", *schema, str(workflow)]
    process = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_workflow_runs_on_every_supported_python() -> None:
    supported = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert supported
    for name, job in _jobs().items():
        assert job["strategy"]["matrix"]["python"] == supported, name


def test_workflow_runs_the_commands_of_the_makefile() -> None:
    script = "\n".join(step.get("run", "") for job in _jobs().values() for step in job["steps"])
    commands = re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [command for command in commands if f"make {command} " not in listed] == []
    assert {"check", "test", "test-random", "wheel", "test-compiled"} <= set(commands)


def test_workflow_has_no_write_permission_and_a_time_limit() -> None:
    assert read_yaml(WORKFLOW)["permissions"] == {"contents": "read"}
    assert [name for name, job in _jobs().items() if not job.get("timeout-minutes")] == []


def test_the_release_builds_every_supported_python_and_publishes_tags_only() -> None:
    jobs: dict[str, Any] = read_yaml(RELEASE)["jobs"]
    supported = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    steps = [step for job in jobs.values() for step in job["steps"]]
    [build] = [step["env"]["CIBW_BUILD"] for step in steps if "CIBW_BUILD" in step.get("env", {})]
    assert build.split() == [f"cp{version.replace('.', '')}-*" for version in supported]
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert read_yaml(RELEASE)["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if not job.get("timeout-minutes")] == []


# -- the image and the compose file


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    process = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert process.stdout + process.stderr == ""
    assert process.returncode == 0


def test_dockerfile_copies_existing_files_that_are_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    copied = [
        source
        for line in re.findall(
            r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
        )
        for source in line.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert sorted(copied) == sorted(allowed)


COMPOSE = ("docker-compose.yml", "docker-compose.ha.yml")


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_file_fits_its_schema(name: str) -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    check = [sys.executable, "-m", "check_jsonschema", *schema, name]
    process = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_mounts_existing_files_and_publishes_on_loopback_only(name: str) -> None:
    for service in read_yaml(ROOT / name)["services"].values():
        mounted = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith(".")]
        assert [source for source in mounted if not (ROOT / source).exists()] == []
        assert [port for port in service["ports"] if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize(
    ("name", "service"), [("docker-compose.yml", "trellis"), ("docker-compose.ha.yml", "haproxy")]
)
def test_compose_publishes_the_ports_of_clients(name: str, service: str) -> None:
    ports = {port.split(":")[1] for port in read_yaml(ROOT / name)["services"][service]["ports"]}
    settings = Settings()
    for listener in (settings.amqp, settings.mqtt, settings.http):
        assert str(listener.port) in ports


def test_settings_of_the_composed_cluster_are_known_and_safe() -> None:
    services = read_yaml(ROOT / "docker-compose.ha.yml")["services"]
    nodes = [services[name]["environment"] for name in ("trellis-1", "trellis-2")]
    for environment in (*nodes, services["topic"]["environment"]):
        settings = load_with_sources([os.devnull], environment, {}).settings
        assert settings.cluster.enabled
        timeout = int(services["kafka-1"]["environment"]["KAFKA_BROKER_SESSION_TIMEOUT_MS"]) / 1000
        assert settings.cluster.silence >= timeout + SILENCE_MARGIN
        assert settings.cluster.lease >= timeout + LEASE_MARGIN
    assert len({environment["TRELLIS_NODE_NAME"] for environment in nodes}) == len(nodes)
    [pool] = read_yaml(ROOT / "docker-compose.ha.yml")["networks"]["default"]["ipam"]["config"]
    assert {environment["TRELLIS_AMQP_PROXIES"] for environment in nodes} == {pool["subnet"]}


def test_kafka_and_the_images_have_the_same_version_everywhere() -> None:
    services = read_yaml(ROOT / "docker-compose.ha.yml")["services"]
    images = {name: service["image"] for name, service in services.items()}
    assert {images[f"kafka-{node}"] for node in (1, 2, 3)} == {f"apache/kafka:{VERSION}"}
    brokers = {images[name] for name in ("topic", "trellis-1", "trellis-2")}
    assert brokers == {f"{PROJECT['name']}:{PROJECT['version']}"}
    assert (
        images["prometheus"]
        == (read_yaml(ROOT / "docker-compose.yml")["services"]["prometheus"]["image"])
    )
