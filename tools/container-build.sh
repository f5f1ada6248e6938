#!/bin/sh
# Makes a virtual environment in DIRECTORY, with the compiled broker and the packages of its extra `server`. If WHEELS is given,
# the broker's wheel is stored there. The Dockerfile and CI run this script.
set -eu
directory=$1
if [ "$#" -gt 1 ]; then
    wheels=$2
    mkdir -p "$wheels"
else
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
fi

tools/make-venv.sh "$directory"
TRELLIS_REQUIRE_COMPILED=1 "$directory/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
# The extra `server` has the packages of bridges, clusters (docker-compose.ha.yml), connectors, tokens and telemetry.
for wheel in "$wheels"/*.whl; do
    "$directory/bin/python" -m pip install --quiet "${wheel}[server]"
done
"$directory/bin/python" build_backend/compiled_modules.py
"$directory/bin/python" -c "import confluent_kafka"
