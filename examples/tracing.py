"""One trace through the broker: an MQTT 5 publisher, and an AMQP consumer with OpenTelemetry.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 python examples/tracing.py

The publisher writes its trace context into the User Properties of the message. The broker forwards
it as AMQP headers, where OpenTelemetry's instrumentation of pika finds it. A broker that runs with
telemetry adds its own spans to the trace.
"""

import argparse
import os

import paho.mqtt.client as mqtt
import pika
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.pika import PikaInstrumentor
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

TOPIC, QUEUE = "orders/new", "orders"

parser = argparse.ArgumentParser(description="Send one order over MQTT, and process it over AMQP.")
parser.add_argument(
    "--host", default=os.environ.get("MQTT_HOST", "localhost"), help="host of the MQTT listener"
)
parser.add_argument(
    "--port",
    type=int,
    default=os.environ.get("MQTT_PORT", "1883"),
    help="port of the MQTT listener",
)
parser.add_argument(
    "--url",
    default=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"),
    help="AMQP URL of the broker, with user and password",
)


def publish(host: str, port: int, tracer: trace.Tracer) -> str:
    """Publish an order in a span, and return the id of its trace in hexadecimal."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "shop", protocol=mqtt.MQTTv5)
    client.connect(host, port)
    client.loop_start()
    with tracer.start_as_current_span(f"send {TOPIC}", kind=trace.SpanKind.PRODUCER) as span:
        context: dict[str, str] = {}
        inject(context)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = list(context.items())
        client.publish(TOPIC, b"1 lamp", qos=1, properties=properties).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()
    return f"{span.get_span_context().trace_id:032x}"


def consume(channel: BlockingChannel) -> None:
    """Process one order. The instrumentation of pika makes the span."""

    def on_order(
        channel: BlockingChannel, method: Basic.Deliver, _properties: BasicProperties, body: bytes
    ) -> None:
        print(f"order: {body.decode()}", flush=True)
        channel.basic_ack(method.delivery_tag)
        channel.stop_consuming()

    channel.basic_consume(QUEUE, on_order)
    channel.start_consuming()


def main() -> None:
    """Send and process one order, and print the id of the trace."""
    options = parser.parse_args()
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    PikaInstrumentor().instrument()

    connection = pika.BlockingConnection(pika.URLParameters(options.url))
    channel = connection.channel()
    channel.queue_declare(QUEUE)
    channel.queue_bind(QUEUE, "amq.topic", "orders.#")
    trace_id = publish(options.host, options.port, trace.get_tracer("shop"))
    consume(channel)
    connection.close()
    provider.shutdown()
    print(f"trace: {trace_id}")


if __name__ == "__main__":
    main()
