#!/bin/sh
# Puts the source of RabbitMQ's Java client 5.0.0, with its tests, into DIRECTORY. The source comes from the source package
# rabbitmq-java-client of Debian or Ubuntu. The script does not change the package lists of the machine: apt-get downloads the
# lists of source packages into a temporary directory. If a download fails, the tests that need the source are skipped.
set -eu
directory=$1
archive=rabbitmq-java-client_5.0.0.orig.tar.gz
checksum=23c185a4b241c60223e8a800472d674f3d8e8fc5688bf99abe6ccdfd55e64aeb
[ ! -e "$directory" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/cache/archives/partial"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
    [ ! -e "$list" ] || sed -e 's/^Types:.*/Types: deb-src/' -e 's/^deb /deb-src /' "$list" > "$work/parts/$(basename "$list")"
done
[ ! -e "$work/parts/sources.list" ] || mv "$work/parts/sources.list" "$work/parts/machine.list"
get() {
    apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" "$@"
}
cd "$work"
if ! command -v apt-get > /dev/null || ! get update > log 2>&1; then
    echo "trellis: cannot read the lists of source packages; the Java client's tests are skipped"
    exit 0
fi
# Some mirrors lack the packaging files, which are not needed. So the exit code is ignored, and the archive is checked instead.
get source --download-only rabbitmq-java-client > log 2>&1 || true
if ! echo "$checksum  $archive" | sha256sum --check --status 2> /dev/null; then
    echo "trellis: cannot download the source package rabbitmq-java-client; the Java client's tests are skipped"
    exit 0
fi
tar -xzf "$archive"
mkdir -p "$(dirname "$directory")"
# Another process may have fetched the source meanwhile.
mv -T rabbitmq-java-client-5.0.0 "$directory" 2> /dev/null || [ -e "$directory/src" ]
echo "trellis: downloaded the source of RabbitMQ's Java client 5.0.0"
