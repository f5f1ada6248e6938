#!/bin/sh
# Makes the virtual environment DIRECTORY anew, with $PYTHON or the first Python >= 3.11 that is found, and prints its version.
set -eu
directory=$1

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

found=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null && fits "$candidate"; then
        # ensurepip puts pip into a virtual environment. On Debian and Ubuntu it is a separate package.
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            found=$candidate
            break
        fi
        bare=$candidate
    fi
done

if [ -z "$found" ]; then
    if [ -n "${bare:-}" ]; then
        echo "trellis: $bare cannot make virtual environments, because its module ensurepip is missing." >&2
        echo "         On Debian and Ubuntu: apt install python3-venv" >&2
    elif [ -n "${PYTHON:-}" ]; then
        echo "trellis: PYTHON=$PYTHON is not an executable of Python 3.11 or later." >&2
    else
        echo "trellis: found no Python 3.11 or later: searched PATH for python3 and python3.11 to python3.14." >&2
        echo "         To use a Python that is not on PATH: make PYTHON=/path/to/python ..." >&2
    fi
    exit 1
fi

echo "trellis: making the virtual environment $directory with $("$found" --version)"
"$found" -m venv --clear "$directory" || { rm -rf "$directory"; exit 1; }
