"""The broker's end of the telemetry: sends the steps of sampled messages, and counts spans.

A step waits at most FLUSH_SECONDS before the broker sends it. If the worker is not running or is
too slow, the steps wait longer, in SampledSteps, which drops steps when it is full.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import random
import time
from collections.abc import Callable
from typing import Final

import trellis
from broker.broker import Broker
from broker.messages.sampled import SampledOrigin, SampledStep, SampledSteps
from broker.routing.sampling import MessageSampler
from trellis import logs
from trellis.settings import Settings, SettingsError
from trellis.settings.telemetry import full_endpoint, is_disabled, sampling_of
from trellis.telemetry import contract
from trellis.worker_process import WorkerProcess

#: Seconds between two lines of steps to the worker.
FLUSH_SECONDS: Final = 0.1
#: The worker gets no further steps while more than this number of bytes waits for it.
UNSENT_MAX: Final = 1 << 20
#: Seconds in which the worker sends its last spans when the broker stops.
END_SECONDS: Final = 0.8
#: Shortest time in seconds between two log lines about a collector that does not accept spans.
LOG_INTERVAL: Final = 60.0
#: The package whose presence shows that the extra `otel` is installed.
_EXPORTER: Final = "opentelemetry-exporter-otlp-proto-http"


class TelemetryCounters:
    """Totals since the start of the broker.

    `waiting` is the present number of spans that wait. `remembered` is the present number of
    messages to whose traces the worker adds further steps.
    """

    def __init__(self) -> None:
        self.exported = 0
        self.dropped_full = 0
        self.dropped_refused = 0
        self.dropped_with_worker = 0
        self.failures = 0
        self.waiting = 0
        self.remembered = 0
        #: Number of messages whose publication the workers did not know (SpanAssembler).
        self.unknown = 0


class TelemetryService:
    """The telemetry of a broker. `sampler` chooses the messages whose steps become spans."""

    def __init__(self, sampler: MessageSampler, opening: contract.OpenExport) -> None:
        self.sampler = sampler
        self.counters = TelemetryCounters()
        #: True unless the last request to the collector failed.
        self.up = True
        self._opening = opening
        self._steps = sampler.steps
        self._logged_at = -LOG_INTERVAL
        #: Number of unknown messages of earlier workers.
        self._unknown_before = 0
        self._flushing: asyncio.TimerHandle | None = None
        #: The worker; None before `start`.
        self.worker: WorkerProcess | None = None

    def start(self) -> None:
        """Start the worker. Called in the event loop."""
        self._steps.wake = self._schedule
        self.worker = WorkerProcess(
            "trellis.telemetry", contract.line(self._opening), self._on_line, self._on_lost
        )

    def close(self) -> None:
        """Send the last steps, and end the worker within END_SECONDS."""
        if self._flushing is not None:
            self._flushing.cancel()
        self._steps.wake = _ignore
        if self.worker is not None:
            self.worker.close(END_SECONDS, self._take_line())

    def _schedule(self) -> None:
        """Schedule a call that sends the waiting steps to the worker.

        Called at the first waiting step.
        """
        if self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(FLUSH_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        if not self._flush():
            self._schedule()

    def _flush(self) -> bool:
        """Send the waiting steps to the worker; return False if the worker cannot receive them."""
        worker = self.worker
        if worker is None or not worker.ready or worker.unsent > UNSENT_MAX:
            return False
        worker.send(self._take_line())
        return True

    def _take_line(self) -> bytes:
        """Remove the waiting steps from the queue, and return them as a line; b"" if none waits."""
        steps = steps_of(self._steps)
        return contract.line(contract.Steps(steps)) if steps else b""

    def _on_line(self, line: bytes) -> None:
        message = contract.from_worker.decode(line)
        if isinstance(message, contract.ExporterReady):
            assert self.worker is not None
            self.worker.ready = True
            return
        counters = self.counters
        counters.exported += message.exported
        counters.dropped_full += message.dropped_full
        counters.dropped_refused += message.dropped_refused
        counters.failures += message.failures
        counters.waiting = message.waiting
        counters.remembered = message.remembered
        counters.unknown = self._unknown_before + message.unknown
        if message.failures or message.exported:
            self._set_up(message.reason)

    def _set_up(self, reason: str) -> None:
        """Record and log the state of the collector.

        `reason` is the last failure of a request; "" if the collector accepts spans.
        """
        now = time.monotonic()
        if reason and (self.up or now - self._logged_at >= LOG_INTERVAL):
            self._logged_at = now
            logs.warning(
                "telemetry_away",
                reason=reason,
                waiting=self.counters.waiting,
                note="spans wait and are sent again; messages are not affected",
            )
        elif not reason and not self.up:
            logs.info("telemetry_back", exported=self.counters.exported)
        self.up = not reason

    def _on_lost(self, reason: str, delay: float) -> None:
        self.counters.dropped_with_worker += self.counters.waiting
        self.counters.waiting = self.counters.remembered = 0
        self._unknown_before = self.counters.unknown
        logs.warning(
            "telemetry_worker_lost",
            reason=reason,
            note=f"the spans in the worker are lost; the worker starts again in {delay:g} s",
        )


def telemetry_from_settings(
    settings: Settings,
    broker: Broker,
    environment: dict[str, str] | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> TelemetryService | None:
    """Return the telemetry that the settings and the environment request; None if it is disabled.

    If telemetry is enabled, the broker samples messages from now on. Raises SettingsError.
    """
    wanted = settings.telemetry
    environment = dict(os.environ) if environment is None else environment
    if not wanted.enabled:
        return None
    disabled = is_disabled(environment)
    if disabled:
        note = f"{disabled} overrides telemetry.enabled, so no spans are made"
        logs.info("telemetry_disabled", note=note)
        return None
    try:
        importlib.metadata.version(_EXPORTER)
    except importlib.metadata.PackageNotFoundError:
        raise SettingsError(
            f"telemetry.enabled: {_EXPORTER} is not installed; "
            "pip install 'trellis-broker[otel]', or set telemetry.enabled to false"
        ) from None
    try:
        sampling = sampling_of(wanted, environment)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    sampler = MessageSampler(
        broker.agenda,
        SampledSteps(clock),
        random.getrandbits,
        sampling.parent_based,
        sampling.ratio,
        wanted.rate,
    )
    broker.sample_messages(sampler)
    # The library refuses a value that begins with a space, and its error has the whole value. (The
    # space is no part of the value: RFC 9110, section 5.5.)
    parts = (text.partition("=") for text in wanted.headers)
    headers = {name: value.strip() for name, _, value in parts}
    opening = contract.OpenExport(
        full_endpoint(wanted.endpoint),
        headers,
        wanted.service_name,
        settings.node.name,
        trellis.__version__,
    )
    return TelemetryService(sampler, opening)


def steps_of(waiting: SampledSteps) -> list[contract.Step]:
    """Remove the waiting steps from the queue, and return them in the form for the worker."""
    return [_step(step) for step in waiting.take()]


def _step(step: SampledStep) -> contract.Step:
    return contract.Step(
        step.trace_id,
        step.span_id,
        step.time,
        step.step,
        step.place,
        step.detail,
        step.client,
        None if step.origin is None else _origin(step.origin),
    )


def _origin(origin: SampledOrigin) -> contract.StepOrigin:
    parent = origin.parent
    return contract.StepOrigin(
        "" if parent is None else parent.span_id,
        "" if parent is None else parent.state,
        origin.vhost,
        origin.exchange,
        origin.key,
        origin.user,
        origin.protocol,
        origin.client,
        origin.size,
        origin.message_id,
        origin.correlation_id,
    )


def _ignore() -> None:
    """Do nothing. `close` sets `SampledSteps.wake` to this function: the worker has ended."""
