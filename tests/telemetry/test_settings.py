"""The sampling that settings and OpenTelemetry's environment variables request."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from tests.clients import World
from trellis.settings import Settings, SettingsError
from trellis.settings.telemetry import (
    Sampling,
    TelemetrySettings,
    check_header,
    full_endpoint,
    sampling_of,
)
from trellis.telemetry.service import telemetry_from_settings


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("", "", Sampling(True, 0.5)),
        ("always_on", "", Sampling(False, 1.0)),
        ("always_off", "0.3", Sampling(False, 0.0)),
        ("traceidratio", "0.25", Sampling(False, 0.25)),
        ("parentbased_always_on", "", Sampling(True, 1.0)),
        ("parentbased_always_off", "", Sampling(True, 0.0)),
        ("ParentBased_TraceIdRatio", "0.125", Sampling(True, 0.125)),
        ("traceidratio", "", Sampling(False, 1.0)),
    ],
)
def test_the_environment_overrides_the_ratio(
    sampler: str, argument: str, expected: Sampling
) -> None:
    environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert sampling_of(TelemetrySettings(ratio=0.5), environment) == expected


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "'jaeger_remote' is not supported"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "often"},
            "OTEL_TRACES_SAMPLER_ARG: 'often' is not a number from 0 to 1",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"},
            "OTEL_TRACES_SAMPLER_ARG: '1.5' is not a number from 0 to 1",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc'"),
    ],
)
def test_a_wrong_variable_is_named(environment: dict[str, str], error: str) -> None:
    wanted = Settings(telemetry=TelemetrySettings(enabled=True))
    with pytest.raises(SettingsError, match=error):
        telemetry_from_settings(wanted, World().broker, environment)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    wanted = Settings(telemetry=TelemetrySettings(enabled=True))
    with pytest.raises(SettingsError, match=r"pip install 'trellis-broker\[otel\]'"):
        telemetry_from_settings(wanted, World().broker, {})


@pytest.mark.parametrize("text", ["authorization", "=x", "a b=c", "né=c", "a=b\n"])
def test_a_header_without_a_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must "):
        check_header(text)


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("", ""),
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_a_url_without_a_path_gets_the_path_of_spans(url: str, full: str) -> None:
    assert full_endpoint(url) == full
