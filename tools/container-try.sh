#!/bin/sh
# Runs the broker that is installed in DIRECTORY as the container image does: start, health check, SIGTERM, exit code 0.
set -eu
trellis=$1/bin/trellis
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# As in the container, but on free ports and with a temporary data directory.
TRELLIS_CONFIG=config/docker.toml TRELLIS_DATA_DIR=$data/state TRELLIS_USER=demo TRELLIS_PASSWORD=demo
TRELLIS_AMQP_PORT=0 TRELLIS_MQTT_PORT=0 TRELLIS_HTTP_PORT=0 TRELLIS_METRICS_PORT=$(free_port)
export TRELLIS_CONFIG TRELLIS_DATA_DIR TRELLIS_USER TRELLIS_PASSWORD
export TRELLIS_AMQP_PORT TRELLIS_MQTT_PORT TRELLIS_HTTP_PORT TRELLIS_METRICS_PORT

"$trellis" version
"$trellis" serve &
server=$!
tries=100
until "$trellis" health; do
    tries=$((tries - 1))
    if [ "$tries" -eq 0 ] || ! kill -0 "$server" 2>/dev/null; then
        echo "container-try.sh: the broker did not become healthy; see its output above" >&2
        kill "$server" 2>/dev/null || true
        exit 1
    fi
    sleep 0.1
done
kill -TERM "$server"
wait "$server"
echo "container-try.sh: the broker started, was healthy, and stopped with exit code 0"
