"""The files for Prometheus and Grafana agree with the broker: rules, alerts, dashboard, scrapes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.foreign import require
from tests.test_packaging import ROOT, read_yaml

RULES = ROOT / "config" / "prometheus" / "rules" / "trellis.yml"
DASHBOARD = ROOT / "config" / "grafana" / "dashboards" / "trellis.json"

#: Words of PromQL that are not names of metrics.
_PROMQL_WORDS = {"and", "or", "unless", "bool", "offset"}


def metric_names(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression reads."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b[A-Za-z_:][\w:]*\b(?!\s*\()", bare)) - _PROMQL_WORDS


def metrics_used() -> set[str]:
    """Return the metrics of the rules and the dashboard, except Prometheus's own `up`."""
    expressions = [str(rule["expr"]) for rule in _rules()]
    expressions += [str(target["expr"]) for panel in _panels() for target in panel["targets"]]
    for variable in _dashboard()["templating"]["list"]:
        expressions += re.findall(r"label_values\(([^,]+),", variable.get("definition", ""))
    return set().union(*map(metric_names, expressions)) - {"up"}


def _rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]


def _dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in _dashboard()["panels"] if panel["type"] != "row"]


def test_prometheus_scrapes_the_broker_of_the_compose_file_and_finds_its_rules() -> None:
    prometheus = read_yaml(ROOT / "config" / "prometheus" / "prometheus.yml")
    assert [config["static_configs"] for config in prometheus["scrape_configs"]] == [
        [{"targets": ["trellis:15692"]}]
    ]
    assert [
        path for pattern in prometheus["rule_files"] for path in RULES.parents[1].glob(pattern)
    ] == [RULES]


def test_prometheus_scrapes_both_nodes_of_the_composed_cluster() -> None:
    prometheus = read_yaml(ROOT / "config" / "ha" / "prometheus.yml")
    [[config]] = [config["static_configs"] for config in prometheus["scrape_configs"]]
    assert config == {"targets": ["trellis-1:15692", "trellis-2:15692"]}


@pytest.mark.parametrize("name", ["prometheus", "ha"])
def test_promtool_accepts_the_configuration_and_the_rules(name: str, tmp_path: Path) -> None:
    promtool = require("promtool")
    shutil.copy(ROOT / "config" / name / "prometheus.yml", tmp_path)
    shutil.copytree(RULES.parent, tmp_path / "rules")
    check = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    process = subprocess.run(check, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_alert_has_a_severity_a_summary_and_a_description() -> None:
    alerts = [rule["alert"] for rule in _rules()]
    assert len(set(alerts)) == len(alerts)
    for rule in _rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])


def test_each_alert_names_the_section_of_its_cure_and_the_section_names_the_alert() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    page = page[page.index("\n## Alerts and their cures\n") :]
    sections = {
        title.lower().replace(" ", "-"): text
        for title, text in re.findall(r"^### ([^\n]+)\n\n(.*?)(?=^##|\Z)", page, re.M | re.S)
    }
    for rule in _rules():
        path, _, section = rule["annotations"]["runbook"].partition("#")
        assert path == "docs/troubleshooting.md"
        assert rule["alert"] in sections[section]
    assert all(
        re.match(r"This section is for the alerts? Trellis\w+", text) for text in sections.values()
    )


#: Alert on counters and gauges -> the series with which it fires: one sample a minute, in
#: promtool's notation.
ALERT_CASES: Final[dict[str, dict[str, str]]] = {
    "TrellisAlarm": {"rabbitmq_alarms_memory_used_watermark": "1x60"},
    "TrellisStoreBlocked": {"trellis_store_blocked": "1x60"},
    "TrellisCertificateEnds": {'trellis_tls_certificate_end_seconds{file="tls.pem"}': "86400x120"},
    "TrellisDeadLetters": {
        "rabbitmq_global_messages_dead_lettered_expired_total": "0+600x60",
        "rabbitmq_global_messages_dead_lettered_maxlen_total": "0x60",
        "rabbitmq_global_messages_dead_lettered_rejected_total": "0x60",
        "rabbitmq_global_messages_dead_lettered_delivery_limit_total": "0x60",
        'rabbitmq_global_messages_received_total{protocol="amqp091"}': "0+6000x60",
    },
    "TrellisLoginFailures": {'trellis_logins_total{outcome="refused",protocol="mqtt"}': "0+60x60"},
    "TrellisSessionsTakenOver": {'trellis_refusals_total{event="session_taken_over"}': "0+60x60"},
    "TrellisAuditLinesLost": {"trellis_audit_lines_lost_total": "0x5 1+1x60"},
}


@pytest.mark.parametrize("alert", ALERT_CASES)
def test_an_alert_fires_when_its_cause_lasts_and_not_without_it(alert: str, tmp_path: Path) -> None:
    promtool = require("promtool")
    (rule,) = (each for each in _rules() if each["alert"] == alert)
    cases = []
    for fires in (True, False):
        series = [
            {
                "series": _with_instance(name),
                "values": values if fires else _harmless(values),
            }
            for name, values in ALERT_CASES[alert].items()
        ]
        cases.append(
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                        "eval_time": "90m" if "x120" in str(series) else "45m",
                        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                    }
                ],
            }
        )
    (tmp_path / "rules.yml").write_text(RULES.read_text())
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert rule["labels"]["severity"] in ("critical", "warning")


def _with_instance(series: str) -> str:
    name, brace, labels = series.partition("{")
    return f'{name}{{instance="broker:15692"{"," + labels if brace else "}"}'


def _harmless(values: str) -> str:
    """Return a test series for promtool with which the alert must not fire.

    `values` is a series of the same length with which the alert must fire.
    """
    return "99999999999x120" if values == "86400x120" else "0x60"


def test_expressions_have_balanced_brackets() -> None:
    for expression in [rule["expr"] for rule in _rules()] + [
        t["expr"] for p in _panels() for t in p["targets"]
    ]:
        assert [expression.count(mark) for mark in "({["] == [
            expression.count(mark) for mark in ")}]"
        ], expression


def test_metric_names_are_found_in_promql() -> None:
    expression = (
        'sum by (a, b) (rate(x_total{c="d_e"}[5m])) / on (a) group_left (f) y > 0 '
        "and deriv(z:w[5m]) < 1e3"
    )
    assert metric_names(expression) == {"x_total", "y", "z:w"}


def test_rules_and_dashboard_read_only_metrics_of_the_broker() -> None:
    used = metrics_used()
    assert len(used) > 20
    assert [name for name in used if not name.startswith(("rabbitmq_", "trellis_"))] == []


def test_dashboard_is_provisioned_with_its_source() -> None:
    provisioning = ROOT / "config" / "grafana" / "provisioning"
    (provider,) = read_yaml(provisioning / "dashboards" / "trellis.yml")["providers"]
    mounts = read_yaml(ROOT / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert (
        f"./{DASHBOARD.parent.relative_to(ROOT).as_posix()}:{provider['options']['path']}:ro"
        in mounts
    )
    (source,) = read_yaml(provisioning / "datasources" / "prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    variables = {variable["name"]: variable for variable in _dashboard()["templating"]["list"]}
    assert variables["source"]["query"] == source["type"]
    assert {panel["datasource"]["uid"] for panel in _panels()} == {"${source}"}


def _squares(panel: dict[str, Any]) -> Iterator[tuple[int, int]]:
    at = panel["gridPos"]
    for x in range(at["x"], at["x"] + at["w"]):
        for y in range(at["y"], at["y"] + at["h"]):
            yield x, y


def test_panels_have_their_own_place_name_and_number() -> None:
    panels = _dashboard()["panels"]
    squares = [square for panel in panels for square in _squares(panel)]
    assert len(set(squares)) == len(squares)
    assert max(x for x, _ in squares) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
