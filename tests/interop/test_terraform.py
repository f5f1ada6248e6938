"""Tests of the HTTP API with Terraform and its provider for RabbitMQ (cyrilgdn/rabbitmq)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker import BrokerProcess, environment
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, HERE, build

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "terraform" / "main.tf"
#: The Go packages of Terraform and of its provider, and the provider's version in its go.mod.
TERRAFORM: Final = "github.com/hashicorp/terraform"
PROVIDER: Final = "github.com/terraform-providers/terraform-provider-rabbitmq"
PROVIDER_VERSION: Final = "1.8.0"
#: The address that one of the provider's tests expects.
ADDRESS: Final = "http://localhost:15672"
#: Number of the provider's tests, two of which need no broker.
ACCEPTANCE_TESTS: Final = 37
#: Seconds for one command of Terraform, and for the provider's tests.
PATIENCE: Final = 300
#: Exit codes of `terraform plan -detailed-exitcode`.
NO_CHANGE, CHANGES = 0, 2

#: The resources of the example, and the names under which Terraform imports them.
IMPORTED: Final = {
    "rabbitmq_vhost.shop": "shop",
    "rabbitmq_user.worker": "worker",
    "rabbitmq_permissions.worker": "worker@shop",
    "rabbitmq_permissions.terraform": "guest@shop",
    "rabbitmq_exchange.events": "events@shop",
    "rabbitmq_topic_permissions.worker": "worker@shop",
    "rabbitmq_queue.orders": "orders@shop",
    "rabbitmq_queue.failed": "failed@shop",
    "rabbitmq_binding.orders": "shop/events/orders/queue/orders%2F%23",
    "rabbitmq_policy.lengths": "lengths@shop",
    "rabbitmq_operator_policy.expiry": "expiry@shop",
}

#: Resources with an attribute that Terraform cannot read from any broker: the password.
UNREADABLE: Final = {"rabbitmq_user.worker"}

#: Resources that Trellis refuses, with its reasons.
REFUSED: Final = {
    """
    resource "rabbitmq_queue" "wrong" {
      name  = "wrong"
      vhost = "shop"
      settings {
        durable = true
        arguments = {
          "x-message-ttl" = "soon"
        }
      }
    }
    """: "Error 400 (bad_request): invalid arg 'x-message-ttl' for queue 'wrong' in vhost 'shop': "
    "must be a number",
}


def build_acceptance_tests(endpoint: str) -> Path:
    """Build the provider's own acceptance tests, and return the program's path.

    One of these tests names the address of the HTTP API in its source: a copy of the source has
    `endpoint` instead. Skip the test if the source cannot be fetched.
    """
    go, module = require("go"), HERE / "go" / "terraform-provider"
    directory, program = BUILT / "terraform-provider", BUILT / "terraform-acceptance"
    build([go, "mod", "download"], module)
    listed = [go, "list", "-m", "-f", "{{.Dir}}", PROVIDER]
    done = subprocess.run(listed, cwd=module, capture_output=True, text=True, check=True)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(done.stdout.strip(), directory, copy_function=shutil.copyfile)
    for path in (directory, *(one for one in directory.rglob("*") if one.is_dir())):
        path.chmod(0o755)  # The directories of Go's copy are read-only.
    source = directory / "rabbitmq" / "resource_user_test.go"
    text = source.read_text()
    assert text.count(ADDRESS) == 1
    source.write_text(text.replace(ADDRESS, endpoint))
    build([go, "test", "-c", "-o", str(program), "./rabbitmq"], directory)
    return program


def build_terraform() -> tuple[str, Path]:
    """Build Terraform and its provider; return Terraform's path, and its settings file.

    The settings name a directory as the source of providers, so `terraform init` needs no registry.
    The first build takes 3 CPU minutes.
    """
    go = require("go")
    program, mirror = BUILT / "terraform", BUILT / "terraform-providers"
    platform = "_".join(
        subprocess.run(
            [go, "env", "GOOS", "GOARCH"], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    provider = (
        mirror / "registry.terraform.io/cyrilgdn/rabbitmq" / PROVIDER_VERSION / platform
    ) / f"terraform-provider-rabbitmq_v{PROVIDER_VERSION}"
    build([go, "build", "-o", str(program), TERRAFORM], HERE / "go" / "terraform")
    build([go, "build", "-o", str(provider), PROVIDER], HERE / "go" / "terraform-provider")
    settings = BUILT / "terraform.rc"
    settings.write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{mirror}"\n  }}\n}}\n'
    )
    return str(program), settings


class Terraform:
    """Terraform in a directory of its own, with its provider for RabbitMQ.

    If the test cannot build the two programs, the constructor skips the test.
    """

    def __init__(self, directory: Path, broker: BrokerProcess) -> None:
        self._program, settings = build_terraform()
        self._directory = directory
        host, port = broker.addresses["http"]
        self._endpoint = f"http://{host}:{port}"
        self._environment = environment() | {
            "CHECKPOINT_DISABLE": "1",
            "TF_CLI_CONFIG_FILE": str(settings),
            "TF_INPUT": "0",
            "TF_IN_AUTOMATION": "1",
            "TF_VAR_endpoint": self._endpoint,
        }
        (directory / "main.tf").write_text(EXAMPLE.read_text())
        self.run("init")

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command of Terraform, check its exit code, and return its output in one line."""
        done = self._run(*arguments)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return _flat(done.stdout + done.stderr)

    def apply(self, **variables: object) -> str:
        """Apply the configuration, check that a plan is empty afterwards, and return the output."""
        given = [f"-var={name}={value}" for name, value in variables.items()]
        output = self.run("apply", "-auto-approve", *given)
        self.run("plan", "-detailed-exitcode", *given, exit_code=NO_CHANGE)
        return output

    def changes(self) -> dict[str, str]:
        """Return the resources that a plan changes, each with its action."""
        done = self._run("plan", "-json", "-detailed-exitcode")
        assert done.returncode in (NO_CHANGE, CHANGES), done.stdout + done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        planned = [row["change"] for row in rows if row["type"] == "planned_change"]
        return {change["resource"]["addr"]: change["action"] for change in planned}

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *arguments],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the HTTP API, as another tool would; return the decoded answer, or None
        for status 404."""
        login = base64.b64encode(b"guest:guest").decode()
        request = urllib.request.Request(
            f"{self._endpoint}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None


def _flat(output: str) -> str:
    """Return the output of Terraform without the colours, frames and line breaks of messages."""
    return re.sub(r"[\s╷│╵]+", " ", re.sub(r"\x1b\[\d*m", "", output))


@pytest.fixture
def terraform(broker: BrokerProcess, tmp_path: Path) -> Terraform:
    """Return Terraform with an initialized example."""
    return Terraform(tmp_path, broker)


@pytest.mark.long
def test_terraform(terraform: Terraform, tmp_path: Path) -> None:
    """Check the life of all resources: creation, drift, change, import, refusal and removal."""
    assert "Apply complete! Resources: 12 added" in terraform.apply()
    queue = terraform.api("GET", "queues/shop/orders")
    assert (queue["type"], queue["policy"], queue["operator_policy"]) == (
        "quorum",
        "lengths",
        "expiry",
    )
    assert queue["arguments"] == {"x-queue-type": "quorum", "x-delivery-limit": 5}

    # Terraform detects changes by other tools, and reverts them.
    (binding,) = terraform.api("GET", "bindings/shop/e/amq.headers/q/failed")
    assert binding["routing_key"] == "~ of 100 % a+b"
    terraform.api("DELETE", "bindings/shop/e/events/q/orders/orders%252F%2523")
    terraform.api("DELETE", "operator-policies/shop/expiry")
    terraform.api("PUT", "policies/shop/lengths", {"pattern": "x", "definition": {"expires": 9}})
    terraform.api("PUT", "permissions/shop/worker", {"configure": "", "write": "", "read": ""})
    terraform.api("DELETE", "topic-permissions/shop/worker")
    terraform.api("PUT", "users/worker", {"password": "secret", "tags": "monitoring"})
    assert terraform.changes() == {
        "rabbitmq_binding.orders": "create",
        "rabbitmq_operator_policy.expiry": "create",
        "rabbitmq_topic_permissions.worker": "create",
        "rabbitmq_policy.lengths": "update",
        "rabbitmq_permissions.worker": "update",
        "rabbitmq_user.worker": "update",
    }
    terraform.apply()

    terraform.apply(max_length=7)
    known = terraform.api("GET", "policies/shop/lengths")
    assert known["definition"]["max-length"] == 7
    terraform.apply()

    for address, name in IMPORTED.items():
        terraform.run("state", "rm", address)
        assert "Import successful!" in terraform.run("import", address, name)
    assert terraform.changes() == dict.fromkeys(UNREADABLE, "update")
    terraform.apply()

    for resource, reason in REFUSED.items():
        (tmp_path / "refused.tf").write_text(resource)
        assert reason in terraform.run("apply", "-auto-approve", exit_code=1)
        (tmp_path / "refused.tf").unlink()
    terraform.apply()

    assert "Resources: 12 destroyed" in terraform.run("destroy", "-auto-approve")
    assert terraform.api("GET", "vhosts/shop") is None
    assert terraform.api("GET", "users/worker") is None


@pytest.mark.long
def test_acceptance_tests_of_the_provider(tmp_path: Path) -> None:
    """Check that all acceptance tests of the provider pass, as they do with RabbitMQ."""
    broker = BrokerProcess("--data-dir", str(tmp_path))
    try:
        host, port = broker.addresses["http"]
        endpoint = f"http://{host}:{port}"
        program = build_acceptance_tests(endpoint)
        done = subprocess.run(
            [program, "-test.v"],
            cwd=program.parent / "terraform-provider" / "rabbitmq",
            env=environment()
            | {
                "CHECKPOINT_DISABLE": "1",
                "TF_ACC": "1",
                "TF_ACC_TERRAFORM_PATH": build_terraform()[0],
                "RABBITMQ_ENDPOINT": endpoint,
                "RABBITMQ_USERNAME": "guest",
                "RABBITMQ_PASSWORD": "guest",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        broker.stop()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert done.stdout.count("--- PASS: ") == ACCEPTANCE_TESTS
