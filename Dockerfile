# syntax=docker/dockerfile:1
# The image of the broker: compiled, with the packages of its extra `server`, running as an unprivileged user. For amd64 and arm64:
# docker buildx build --platform linux/amd64,linux/arm64 .

FROM python:3.13-slim AS builder
# The compiler is used in this stage only, so its version is not pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY build_backend build_backend
COPY tools tools
COPY matching matching
COPY broker broker
COPY protocols protocols
COPY trellis trellis
COPY pyspark_trellis pyspark_trellis
RUN tools/container-build.sh /opt/trellis /opt/wheels

# The image of the data pipeline, with Spark and a small Java: docker build --target pipeline. The broker's image has neither.
FROM python:3.13-slim AS pipeline
COPY --from=builder /opt/trellis /opt/trellis
COPY --from=builder /opt/wheels /opt/wheels
COPY --from=builder /src/tools/pipeline-build.sh /opt/pipeline-build.sh
RUN groupadd --gid 10001 trellis \
    && useradd --uid 10001 --gid trellis --home-dir /var/lib/pipeline --create-home --shell /usr/sbin/nologin trellis \
    && /opt/pipeline-build.sh /opt/trellis /opt/wheels /opt/java /opt/spark
ENV PATH="/opt/trellis/bin:/opt/java/bin:${PATH}" \
    JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/trellis/bin/python \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/pipeline
VOLUME /var/lib/pipeline
ENTRYPOINT ["trellis", "pipeline"]
CMD ["--help"]

FROM python:3.13-slim
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Trellis" \
      org.opencontainers.image.description="A message broker: AMQP 0-9-1 and MQTT clients meet in one process and one topic space." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 trellis \
    && useradd --uid 10001 --gid trellis --home-dir /var/lib/trellis --create-home --shell /usr/sbin/nologin trellis
COPY --from=builder /opt/trellis /opt/trellis
COPY config/docker.toml /etc/trellis/broker.toml
ENV PATH="/opt/trellis/bin:${PATH}" \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/trellis
VOLUME /var/lib/trellis
# The ports of AMQP, MQTT, metrics and health checks, and the HTTP API. Then the ports that are open only if the settings enable them:
# AMQP over TLS, MQTT over TLS, WebSocket, WebSocket over TLS.
EXPOSE 5672 1883 15692 15672 5671 8883 15675 15676
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 CMD ["trellis", "health"]
ENTRYPOINT ["trellis"]
CMD ["serve"]
