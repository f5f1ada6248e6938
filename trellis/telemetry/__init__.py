"""Telemetry: spans of sampled messages for distributed tracing, sent over OTLP/HTTP.

    broker                                        worker (a child process)
    MessageSampler -> SampledSteps -> service --lines--> assembly -> span_queue -> exporting -> OTLP

Reading order: contract, service, assembly, attributes, span_queue, exporting, worker. Only the
worker imports OpenTelemetry's packages.
"""
