"""The section [telemetry]: spans of messages for distributed tracing."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Struct

from trellis.settings.declaration import Section, option

#: The path of the spans below the URL of a collector (OTLP specification, OTLP/HTTP request).
TRACES_PATH = "/v1/traces"
#: The only protocol of the exporter.
PROTOCOL = "http/protobuf"
#: The samplers that OTEL_TRACES_SAMPLER may name. The first value is True if the flag in
#: `traceparent` decides first. The second value is the ratio, from 0 to 1; None if
#: OTEL_TRACES_SAMPLER_ARG gives the ratio.
SAMPLERS: dict[str, tuple[bool, float | None]] = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}


def check_endpoint(url: str) -> None:
    """Raise ValueError unless the text is empty or the URL of a collector."""
    form = 'must be a URL such as "http://collector:4318"'
    if not url:
        return
    try:
        parts = urlsplit(url)
        _ = parts.port  # Raises ValueError if the port is not a number.
    except ValueError as error:
        raise ValueError(f"{form} ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(form)


def check_header(text: str) -> None:
    """Raise ValueError unless the text is the name of a header, =, and its value."""
    name, equals, value = text.partition("=")
    if not equals or not name.replace("-", "").isalnum() or not (name + value).isascii():
        raise ValueError('must be NAME=VALUE, such as "authorization=Bearer TOKEN"')
    if not value.isprintable():
        raise ValueError("must not have control characters in the value")


class TelemetrySettings(Section, frozen=True, kw_only=True):
    """Export of spans over OTLP/HTTP, for distributed tracing (install the extra `otel`)."""

    enabled: Annotated[
        bool,
        option("export spans of messages whose `traceparent` has the flag `sampled`"),
    ] = False
    endpoint: Annotated[
        str,
        option(
            'URL of the collector, such as "http://collector:4318"; "" takes the URL from the '
            "environment (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, else OTEL_EXPORTER_OTLP_ENDPOINT), "
            "else it is http://localhost:4318",
            check=check_endpoint,
        ),
    ] = ""
    headers: Annotated[
        tuple[str, ...],
        option(
            "NAME=VALUE of each header of the requests to the collector, such as an API key",
            check=check_header,
            secret=True,
        ),
    ] = ()
    service_name: Annotated[
        str,
        option(
            'service.name of the spans; "" takes OTEL_SERVICE_NAME from the environment, else it '
            "is trellis"
        ),
    ] = ""
    ratio: Annotated[
        float,
        option(
            "share of the messages without `traceparent` that get spans, 0 to 1; above 0, every "
            "message takes a slower path. The environment variable OTEL_TRACES_SAMPLER overrides "
            "this setting",
            ge=0,
            le=1,
        ),
    ] = 0.0
    rate: Annotated[
        int,
        option(
            "largest number of messages per second that get spans; further messages are only "
            "counted",
            ge=1,
            le=10_000,
        ),
    ] = 1_000


class Sampling(Struct, frozen=True):
    """Arguments of MessageSampler, which chooses the messages whose steps become spans."""

    parent_based: bool
    ratio: float


def sampling_of(settings: TelemetrySettings, environment: dict[str, str]) -> Sampling:
    """Return the sampling that the settings name, or OTEL_TRACES_SAMPLER if this variable is set.

    Raises ValueError if one of OpenTelemetry's variables has a value that Trellis does not support.
    """
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(variable, "").strip().lower()
        if protocol not in ("", PROTOCOL):
            raise ValueError(
                f"{variable}: '{protocol}' is not supported; set it to {PROTOCOL}, and name the "
                "collector's port for OTLP/HTTP (4318)"
            )
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if not name:
        return Sampling(True, settings.ratio)
    if name not in SAMPLERS:
        raise ValueError(
            f"OTEL_TRACES_SAMPLER: '{name}' is not supported; use one of {', '.join(SAMPLERS)}"
        )
    parent_based, ratio = SAMPLERS[name]
    if ratio is not None:
        return Sampling(parent_based, ratio)
    given = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG: '{given}' is not a number from 0 to 1")
    return Sampling(parent_based, value)


def is_disabled(environment: dict[str, str]) -> str:
    """Return the variable that turns tracing off, as NAME=VALUE; "" if no variable does so."""
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environment.get(name, "").strip().lower() == value:
            return f"{name}={value}"
    return ""


def full_endpoint(url: str) -> str:
    """Return the URL that gets the spans: a URL without a path is extended by TRACES_PATH."""
    return url.rstrip("/") + TRACES_PATH if url and not urlsplit(url).path.strip("/") else url
