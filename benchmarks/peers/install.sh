#!/usr/bin/env bash
# Installs the named peers, all if none is named: install.sh [mosquitto] [rabbitmq] [nats-debian] [nats] [mochi] [aedes] [amqtt] [hivemq] [artemis]
# Debian's packages go into the system, and their services are neither started nor enabled. The rest goes into .tools and
# node/node_modules beside this file. A failed installation is reported in one line, with exit code 1 at the end.
set -uo pipefail
cd "$(dirname "$0")"
here=$PWD
tools=$here/.tools
. ../install-common.sh

# debian PACKAGE SERVICE...: the services are those that the package would start.
debian() {
    local package=$1
    shift
    if dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed; then
        say "$package is installed already; its services are not changed"
        return
    fi
    if ! have apt-get; then
        fail "$package: apt-get is not on PATH; install $package with the package manager of this system"
        return
    fi
    if ((EUID != 0)); then
        fail "$package: only root can install it; as root, run apt-get install $package, and disable its services"
        return
    fi
    say "installing $package with apt-get"
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e $policy ]; then  # a package runs this script before it starts its service; exit code 101 forbids the start
        printf '#!/bin/sh\nexit 101\n' > $policy && chmod +x $policy && made=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$package" > /dev/null \
        || { DEBIAN_FRONTEND=noninteractive apt-get update -qq \
            && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$package" > /dev/null; } \
        || fail "$package: apt-get install failed, see above"
    [ -z "$made" ] || rm -f $policy
    local service
    for service in "$@"; do
        if [ -d /run/systemd/system ]; then
            systemctl disable --quiet --now "$service" 2> /dev/null
        elif have update-rc.d && [ -e "/etc/init.d/${service%.*}" ]; then
            update-rc.d "${service%.*}" disable > /dev/null
        fi
    done
}

with_go() {
    have go && return
    fail "$1: go is not on PATH; install Go"
    return 1
}

install_mosquitto() { debian mosquitto mosquitto.service; }
install_rabbitmq() { debian rabbitmq-server rabbitmq-server.service epmd.service epmd.socket; }
install_nats_debian() { debian nats-server nats-server.service; }

install_nats() {
    with_go nats || return
    say "installing nats-server ${NATS_VERSION:-latest} with go install"
    GOBIN=$tools/bin go install "github.com/nats-io/nats-server/v2@${NATS_VERSION:-latest}" || fail "nats: go install failed, see above"
}

install_mochi() {
    with_go mochi || return
    say "building mochi-mqtt"
    mkdir -p "$tools/bin"
    (cd go && go build -o "$tools/bin/mochi" .) || fail "mochi: go build failed, see above"
}

install_aedes() {
    if ! have npm; then
        fail "aedes: npm is not on PATH; install Node and npm"
        return
    fi
    say "installing aedes with npm"
    (cd node && npm ci --silent --no-audit --no-fund) || fail "aedes: npm ci failed, see above"
}

install_amqtt() {
    say "installing amqtt with pip"
    mkdir -p "$tools"
    "$here/../../tools/make-venv.sh" "$tools/amqtt" || {
        fail "amqtt: cannot make a virtual environment, see above"
        return
    }
    "$tools/amqtt/bin/python" -m pip --disable-pip-version-check --quiet install --requirement amqtt.txt \
        || fail "amqtt: pip install failed, see above"
}

# with_maven NAME: builds the Java program tests/javabrokers/NAME, and copies the broker's libraries.
with_maven() {
    local program
    for program in java mvn; do
        have $program || {
            fail "$1: $program is not on PATH; install Java 17 and Maven"
            return
        }
    done
    say "building $1 with Maven"
    mvn --quiet --batch-mode --file "../../tests/javabrokers/$1/pom.xml" "-DbuildDirectory=$tools/$1" \
        compile dependency:copy-dependencies "-DoutputDirectory=$tools/$1/lib" || fail "$1: mvn failed, see above"
}

install_hivemq() { with_maven hivemq; }
install_artemis() { with_maven artemis; }

[ $# -gt 0 ] || set -- mosquitto rabbitmq nats-debian nats mochi aedes amqtt hivemq artemis
for peer in "$@"; do
    case $peer in
        mosquitto | rabbitmq | nats-debian | nats | mochi | aedes | amqtt | hivemq | artemis) "install_${peer//-/_}" ;;
        trellis | relay | writer) say "$peer is part of the repository; install it with make run" ;;
        *) fail "unknown peer $peer" ;;
    esac
done
exit $failed
