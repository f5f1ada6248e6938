#!/bin/sh
# Makes DIRECTORY a virtual environment that holds the compiled broker. The Dockerfile runs this, and so does CI.
set -eu
directory=$1
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

tools/make-venv.sh "$directory"
TRELLIS_REQUIRE_COMPILED=1 "$directory/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
"$directory/bin/python" -m pip install --quiet "$wheels"/*.whl
"$directory/bin/python" build_backend/compiled_modules.py
