"""Prints docs/moving-from-rabbitmq.md: tables that compare RabbitMQ with Trellis.

python tools/moving_page.py > docs/moving-from-rabbitmq.md

The tables of definitions come from broker/compatibility.py, which the import of definitions and
`trellis doctor` use as well. The tables of metrics are in rabbitmq_metrics.py. The program looks up
names of metrics in docs/metrics.md, and names of settings in the settings of Trellis.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker.compatibility import (
    COMPONENTS,
    EQUAL,
    EXCHANGE_ARGUMENTS,
    MQTT_SESSION,
    OTHER_PARAMETER,
    POLICY_KEYS,
    QUEUE_ARGUMENTS,
    QUEUE_TYPES,
    TRACING,
    USER_TAGS,
    Comparison,
    judge_argument,
    judge_policy_key,
)
from broker.queues.arguments import EFFECTIVE_ARGUMENTS
from broker.queues.policies import EFFECTIVE_KEYS
from broker.routing.exchanges import TYPES
from broker.vhost.exchange_maker import WITH_QUEUE
from rabbitmq_metrics import DASHBOARDS, DASHBOARDS_TEXT, LOST_LABELS, METRICS, METRICS_TEXT
from trellis.settings.options import OPTIONS

ROOT = Path(__file__).resolve().parent.parent

HEAD = """# Moving from RabbitMQ

This page is for operators and developers who replace RabbitMQ 3.8 to 4.x. After this page you know
how to move definitions, and which definitions, settings, commands, metrics and behaviours are
equal, different or missing in Trellis.

`tools/moving_page.py` generates this page, and a test checks that it is up to date.

## Steps

    rabbitmqctl export_definitions all.json          # on the RabbitMQ machine
    trellis doctor all.json                          # compares; needs no broker, changes nothing
    trellis definitions import all.json --dry-run    # asks a running Trellis, changes nothing
    trellis definitions import all.json

For each section of the file, such as queues, `trellis doctor` prints one line for all equal
objects, and one line for each difference, with the names of the objects that have this difference.
With `--all`, it prints a line for each object. The exit code of `trellis doctor` is 1 if a part of
an object is missing in Trellis.

`trellis definitions import` takes every object and key that Trellis knows, and prints a line for
each unknown object and key. A policy, queue or virtual host with an unknown key is imported without
this key. The import moves no messages: let the consumers empty the queues of the old broker, or
connect the consumers to both brokers for a while.
"""

TOOLS = """## Terraform and KEDA

### Terraform

Terraform's provider for RabbitMQ, `cyrilgdn/rabbitmq`, manages virtual hosts, users, permissions,
topic permissions, exchanges, queues, bindings, policies and operator policies of Trellis. Set
`endpoint` to the address of the HTTP API (`http.port`). The 35 acceptance tests of the provider
(version 1.8.0) pass with Trellis and Terraform 1.5.7. Another test applies this configuration
(`examples/terraform/main.tf`), changes it, imports each resource, and destroys it:

```terraform
{terraform}```

- Trellis refuses a `rabbitmq_vhost` with `tracing = true`: `terraform apply` fails, and prints the
  reason.
- `rabbitmq_shovel` and `rabbitmq_federation_upstream` set parameters, which work as
  [bridges.md](bridges.md) describes. These two resources were not tried with this
  provider.
- If a virtual host has a `default_queue_type`, name `x-queue-type` in the arguments of each queue.
  Otherwise Terraform plans to replace the queue, because the broker reports this argument and the
  configuration lacks it.
- Terraform cannot change users that the settings define, such as `guest`, but it can change their
  permissions.

### KEDA

KEDA's `rabbitmq` scaler works with both protocols (`http`, `amqp`), all modes (`QueueLength`,
`MessageRate`, `DeliverGetRate`, `PublishedToDeliveredRatio`, `ExpectedQueueConsumptionTime`),
`useRegex` with each `operation`, `excludeUnacknowledged`, `vhostName` and `activationValue`. Over
HTTP, the user needs the tag `management` and a permission in the virtual host. The path of the URL
is the virtual host, percent-encoded. A test uses this trigger (`examples/keda/orders.yaml`) with
KEDA's own code:

```yaml
{keda}```

- The lengths of queues are exact at any time. With the protocol `amqp`, the length is the number of
  ready messages.
- Trellis computes a rate from two answers of its HTTP API that are at least 5 s and at most 5 min
  apart, so `pollingInterval` must be below 300 seconds. The rate is 0 in the first answer about a
  queue, and in the first answer after messages begin to flow. In the mode `MessageRate`, KEDA
  starts the scaled program if messages wait, even if the rate is 0.
"""

#: RabbitMQ's settings, each with the setting of Trellis and a remark.
SETTINGS = [
    ("`listeners.tcp.default`", "amqp.port", ""),
    ("`listeners.ssl.default`", "amqps.port", ""),
    ("`ssl_options.certfile`", "tls.certificate", ""),
    ("`ssl_options.keyfile`", "tls.key", ""),
    ("`ssl_options.cacertfile`", "tls.ca", ""),
    ("`ssl_options.verify`, `fail_if_no_peer_cert`", "amqps.client_certificate", ""),
    ("`ssl_options.versions`", "tls.minimum", "the lowest version"),
    ("`proxy_protocol`", "amqp.proxies", "addresses of the trusted proxies"),
    ("`heartbeat`", "amqp.heartbeat", ""),
    ("`frame_max`", "amqp.frame_max", ""),
    ("`channel_max`", "amqp.channel_max", ""),
    ("`handshake_timeout`", "limits.handshake", "of all protocols"),
    ("`max_message_size`", "limits.message", ""),
    ("`vm_memory_high_watermark`", "limits.memory", ""),
    ("`disk_free_limit`", "limits.disk_free", ""),
    ("`connection_max`", "limits.connections", ""),
    ("`consumer_max_per_channel`", "limits.channel_consumers", ""),
    ("`cluster_exchange_limit`", "limits.exchanges", "of each virtual host"),
    ("`default_user`", "user", "the user is in the settings only, not in the database"),
    ("`default_pass`", "password", ""),
    ("`loopback_users`", "auth.guest", "`guest` logs in from this machine only, or not at all"),
    ("`load_definitions`", "definitions.file", ""),
    ("`management.tcp.port`", "http.port", ""),
    ("`prometheus.tcp.port`", "metrics.port", ""),
    ("`mqtt.listeners.tcp.default`", "mqtt.port", ""),
    ("`mqtt.listeners.ssl.default`", "mqtts.port", ""),
    ("`web_mqtt.tcp.port`", "ws.port", ""),
    ("`mqtt.allow_anonymous`", "mqtt.anonymous", ""),
    ("`mqtt.max_session_expiry_interval_seconds`", "mqtt.session_expiry", ""),
    ("`mqtt.max_packet_size_authenticated`", "mqtt.max_packet", ""),
    ("`auth_oauth2.*`", "jwt.issuer", "and the other settings `jwt.*`: [tokens.md](tokens.md)"),
    ("`log.console.level`", "log.level", ""),
    (
        "`cluster_formation.*`, `cluster_partition_handling`",
        "",
        "see [high-availability.md](high-availability.md)",
    ),
    ("`consumer_timeout`", "limits.consumer_timeout", "in ms; no limit by default"),
    ("`default_queue_type`", "", "a property of each virtual host, not of the node"),
    ("`collect_statistics_interval`", "", "counters are exact at any time"),
    (
        "`auth_backends.*` (LDAP, HTTP)",
        "amqtt.plugins",
        "a plugin for LDAP: [amqtt-plugins.md](amqtt-plugins.md#ldap); none for HTTP",
    ),
]

COMMANDS = [
    ("`rabbitmqctl export_definitions FILE`", "`trellis definitions export FILE`"),
    ("`rabbitmqctl import_definitions FILE`", "`trellis definitions import FILE`"),
    ("`rabbitmqctl list_queues`, `list_exchanges`, ...", "`trellis list queues`, `exchanges`, ..."),
    ("`rabbitmqctl add_user`, `set_user_tags`", "`trellis users add NAME --tags TAG`"),
    ("`rabbitmqctl set_permissions`", "`trellis permissions set`"),
    ("`rabbitmqctl set_policy`", "`trellis policies set`"),
    ("`rabbitmqctl add_vhost`", "`trellis vhosts add`"),
    (
        "`rabbitmqctl delete_queue`, `rabbitmqadmin declare`, `delete`",
        "`trellis queues`, `exchanges`, `bindings`: `declare` and `delete`",
    ),
    (
        "`rabbitmqctl set_vhost_limits`, `set_user_limits`",
        "`PUT /api/vhost-limits/...`, `PUT /api/user-limits/...`",
    ),
    ("`rabbitmqctl set_parameter`, `set_operator_policy`", "`PUT /api/parameters/...`"),
    ("`rabbitmq-diagnostics check_running`", "`trellis health`"),
    ("`rabbitmqadmin`", "`rabbitmqadmin`: it works with the [HTTP API](http-api.md)"),
]


BEHAVIOURS = [
    (
        "high availability",
        "clusters, quorum queues, replicas",
        "standbys of a whole broker, over a log on Kafka",
    ),
    ("quorum queue", "replicated", "a durable queue with a delivery limit"),
    ("permissions that change", "apply to new connections and channels", "apply at once"),
    ("`x-delivery-limit`", "quorum queues", "classic queues too"),
    ("invalid key of a policy over HTTP", "refused", "refused"),
    (
        "invalid key of an imported policy",
        "the import stops",
        "the import leaves the key out, and names it",
    ),
    (
        "default queue type",
        "added to durable declarations",
        "equal; an existing queue keeps its type",
    ),
    ("limit of 0 connections", "no connection", "no connection"),
    ("operator policy", "restricts policies: the lower of two numbers applies", "equal"),
    ("MQTT sessions", "queues `mqtt-subscription-...`", "listed with type `MQTT`, not importable"),
    ("`amq.rabbitmq.trace`", "firehose tracer", "journals: [streams.md](streams.md)"),
    (
        "statistics of the API",
        "samples of 5 s, kept for hours",
        "exact counts; rates since the last answer",
    ),
]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table with this head and these rows."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def compared(items: dict[str, Comparison]) -> str:
    """Return a Markdown table that compares each item of RabbitMQ with Trellis."""
    rows = [(f"`{name}`", one.kind, one.text) for name, one in items.items()]
    return table(("in RabbitMQ", "in Trellis", "difference"), rows)


def definitions() -> str:
    """Return the section about definitions."""
    keys = {key: judge_policy_key(key, EFFECTIVE_KEYS) for key in POLICY_KEYS}
    arguments = {name: judge_argument(name, EFFECTIVE_ARGUMENTS) for name in QUEUE_ARGUMENTS}
    kinds = ", ".join(f"`{kind}`" for kind in sorted([*TYPES, *WITH_QUEUE]))
    others = {
        "tracing of a vhost": TRACING,
        "queue mqtt-subscription-...": MQTT_SESSION,
        "global parameter": OTHER_PARAMETER,
        "description, tags, default_queue_type of a vhost": Comparison(EQUAL, ""),
        "protected_from_deletion of a vhost": Comparison(EQUAL, ""),
        "limits of a vhost (max-connections, max-queues)": Comparison(EQUAL, ""),
        "limits of a user (max-connections, max-channels)": Comparison(EQUAL, ""),
        "permission, topic permission": Comparison(EQUAL, ""),
        "password hash (SHA-256, SHA-512, MD5)": Comparison(EQUAL, ""),
        "binding": Comparison(EQUAL, ""),
    }
    return "\n".join(
        [
            "## Definitions\n",
            "The import and `trellis doctor` report the differences in the following tables.",
            "An item that is stored without effect appears in answers of the HTTP API and in",
            "exports.\n",
            "### Policies\n",
            compared(keys),
            "### Queues\n",
            compared(QUEUE_TYPES),
            compared(arguments),
            "### Exchanges\n",
            f"Trellis has these exchange types: {kinds}.",
            "The import reports an exchange of another type, and leaves it out.\n",
            compared(EXCHANGE_ARGUMENTS),
            "### Parameters\n",
            compared({**COMPONENTS, "any other component": OTHER_PARAMETER}),
            "### Users, virtual hosts and the rest\n",
            compared({**{f"tag {tag}": one for tag, one in USER_TAGS.items()}, **others}),
        ]
    )


def settings() -> str:
    """Return the section about settings. Raises KeyError for an unknown setting of Trellis."""
    rows = []
    for theirs, ours, remark in SETTINGS:
        if ours:
            # Look each setting up, so that a renamed setting cannot stay in the table.
            OPTIONS[ours]
        rows.append((theirs, f"`{ours}`" if ours else "none", remark))
    return "## Settings\n\n" + table(("`rabbitmq.conf`", "`broker.toml`", "remark"), rows)


def metrics() -> str:
    """Return the section about metrics."""
    known = (ROOT / "docs" / "metrics.md").read_text()
    rows = []
    for name, instead in METRICS:
        here = f"`{name}`" in known
        assert here or instead, f"docs/metrics.md lacks {name}: name its substitute in METRICS"
        rows.append((f"`{name}`", EQUAL if here else "missing", "" if here else instead))
    lost = [(f"`{label}`", f"`{names}`", reason) for label, names, reason in LOST_LABELS]
    return "\n".join(
        [
            "## Metrics\n",
            "In the name of a metric, `*` stands for any text: a row with `*` is for all metrics",
            "that match it and have no row of their own. On the page `/metrics/detailed`, each",
            "name has `detailed_` after `rabbitmq_`.\n",
            table(("in RabbitMQ", "in Trellis", "instead"), rows),
            METRICS_TEXT,
            "| label | metrics | why it is missing |\n|---|---|---|",
            *[f"| {' | '.join(row)} |" for row in lost],
            "\n### Dashboards\n",
            DASHBOARDS_TEXT,
            table(("dashboard", "data"), DASHBOARDS),
        ]
    )


def main() -> None:
    """Print the text of docs/moving-from-rabbitmq.md."""
    print(HEAD)
    print(definitions())
    print(settings())
    print("## Commands\n\n" + table(("RabbitMQ", "Trellis"), COMMANDS))
    print(metrics())
    examples = {
        "terraform": (ROOT / "examples" / "terraform" / "main.tf").read_text(),
        "keda": (ROOT / "examples" / "keda" / "orders.yaml").read_text(),
    }
    text = TOOLS
    for name, content in examples.items():
        text = text.replace(f"{{{name}}}", content)
    print(text)
    print(
        "## Behaviours\n\n"
        "[amqp.md](amqp.md#what-differs-from-rabbitmq) explains each difference in AMQP, and\n"
        "[http-api.md](http-api.md#what-differs-from-rabbitmq) explains each difference in the\n"
        "HTTP API. This table has the most important differences in behaviour:\n\n"
        + table(("subject", "RabbitMQ", "Trellis"), BEHAVIOURS),
        end="",
    )


if __name__ == "__main__":
    main()
