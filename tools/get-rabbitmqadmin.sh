#!/bin/sh
# Puts RabbitMQ's command-line tool rabbitmqadmin (version 1, a Python script) into FILE, for the tests of the HTTP API.
# The script comes from Debian's or Ubuntu's package rabbitmq-server, which is downloaded but not installed.
set -eu
file=$1
[ ! -e "$file" ] || exit 0

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
if ! command -v apt-get > /dev/null || ! (cd "$directory" && apt-get download -qq rabbitmq-server > log 2>&1); then
    echo "trellis: cannot download rabbitmqadmin from Debian's packages; if it is not on PATH either, its tests are skipped"
    exit 0
fi
dpkg-deb --fsys-tarfile "$directory"/rabbitmq-server_*.deb > "$directory/tar"
script=$(tar -tf "$directory/tar" | grep '/bin/rabbitmqadmin$' | head -n 1)
mkdir -p "$(dirname "$file")"
tar -xOf "$directory/tar" "$script" > "$directory/rabbitmqadmin"
chmod +x "$directory/rabbitmqadmin"
mv "$directory/rabbitmqadmin" "$file"
echo "trellis: unpacked rabbitmqadmin of $(basename "$directory"/rabbitmq-server_*.deb .deb)"
