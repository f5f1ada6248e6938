#!/bin/sh
# Makes DIRECTORY a virtual environment that holds the compiled broker with the packages of its extra `server`. WHEELS, if given, keeps the broker's
# wheel. The Dockerfile and CI run this script.
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
