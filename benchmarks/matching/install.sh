#!/usr/bin/env bash
# Installs the peers of `trellis bench matching`, all if none is named: install.sh [go] [python] [erlang]
# Everything goes into .tools beside this file. A failed installation is reported in one line, with exit code 1 at the end.
set -uo pipefail
cd "$(dirname "$0")"
tools=$PWD/.tools
. ../install-common.sh

install_go() {
    have go || { fail "go: go is not on PATH; install Go"; return; }
    say "building the matchers in Go, also the matcher of NATS"
    (cd go && go build -o "$tools/peers" .) || fail "go: go build failed, see above"
}

install_python() {
    say "installing paho-mqtt and amqtt with pip"
    ../../tools/make-venv.sh "$tools/python" || { fail "python: cannot make a virtual environment, see above"; return; }
    "$tools/python/bin/python" -m pip --disable-pip-version-check --quiet install --requirement requirements.txt \
        || fail "python: pip install failed, see above"
}

install_erlang() {
    have erlc || { fail "erlang: erlc is not on PATH; install Erlang"; return; }
    say "compiling the walks in Erlang"
    erlc -o "$tools" erlang/walks.erl || { fail "erlang: erlc failed, see above"; return; }
    printf '#!/bin/sh\nexec erl +S 1:1 -noshell -boot no_dot_erlang -pa "%s" -run walks main "$1"\n' "$tools" > "$tools/walks"
    chmod +x "$tools/walks"
}

mkdir -p "$tools"
[ $# -gt 0 ] || set -- go python erlang
for peer in "$@"; do
    case $peer in
        go | python | erlang) "install_$peer" ;;
        *) fail "unknown peer $peer" ;;
    esac
done
exit $failed
