#!/bin/sh
# Copies the app for Home Assistant to a folder, with a wheel of the broker for its image.
#
#   packaging/home-assistant/build.sh TARGET [WHEEL]
#
# TARGET  the folder of the app in Home Assistant's folder "addons"
# WHEEL   a wheel for the image (CPython 3.13); without it, a wheel without compiled modules is built
# PIP     the command that runs pip (default: python3 -m pip)
set -eu
here=$(dirname "$0")
target=${1:?"usage: $0 TARGET [WHEEL]"}
wheel=${2:-}
mkdir -p "$target"
cp -R "$here/trellis/." "$target/"
rm -rf "$target/wheels" "$target/addon/__pycache__"
mkdir "$target/wheels"
if [ -n "$wheel" ]; then
    cp "$wheel" "$target/wheels/"
else
    TRELLIS_PURE=1 ${PIP:-python3 -m pip} wheel --quiet --no-deps --wheel-dir "$target/wheels" "$here/../.."
fi
echo "copied the app to $target, with the wheel $(ls "$target/wheels")"
