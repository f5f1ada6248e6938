#!/bin/sh
# Puts RabbitMQ and its Erlang into DIRECTORY, for the tests that compare Trellis with RabbitMQ or link the two.
# Both come from Debian's or Ubuntu's packages, which are unpacked but not installed: no service starts, and root is not needed.
# If RabbitMQ is installed on this machine, the tests use it, and nothing is downloaded.
set -eu
directory=$1
[ ! -e "$directory/complete" ] || exit 0
[ ! -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || exit 0

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
missing() {
    echo "trellis: $1; the tests that need RabbitMQ are skipped"
    exit 0
}
command -v apt-get > /dev/null || missing "apt-get is not on PATH, so RabbitMQ cannot be downloaded"
# The packages that apt would install here: RabbitMQ, and the parts of Erlang and the libraries that this machine lacks.
names=$(apt-get install --simulate --no-install-recommends rabbitmq-server 2> /dev/null | sed -n 's/^Inst \([^ ]*\).*/\1/p')
[ -n "$names" ] || missing "apt-get finds no package rabbitmq-server (run apt-get update)"
(cd "$packages" && apt-get download -qq $names > log 2>&1) || missing "cannot download RabbitMQ from Debian's packages"
rm -rf "$directory"
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
for package in "$packages"/*.deb; do
    dpkg-deb -x "$package" "$directory/root"
done
# Erlang's start scripts contain the directory of an installed Erlang.
grep -rlI '/usr/lib/erlang' "$directory/root/usr/lib/erlang/bin" "$directory"/root/usr/lib/erlang/erts-*/bin |
    xargs sed -i "s|/usr/lib/erlang|$directory/root/usr/lib/erlang|g"
touch "$directory/complete"
echo "trellis: unpacked $(basename "$packages"/rabbitmq-server_*.deb .deb)"
