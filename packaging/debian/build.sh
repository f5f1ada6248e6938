#!/bin/sh
# Builds a Debian package of the broker: build.sh WHEEL DIRECTORY. WHEEL is a wheel of the broker for the Python of this
# machine's /usr/bin/python3 (or PYTHON), and the package is written to DIRECTORY. Needs dpkg-deb and pip.
#
# The package has the broker and its Python packages in /usr/lib/trellis, so that it needs nothing but Debian's python3.
set -eu
wheel=$1
mkdir -p "$2"
output=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-/usr/bin/python3}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

version=$(basename "$wheel" | cut -d- -f2)
minor=$("$python" -c 'import sys; print(sys.version_info.minor)')
pip=${PIP:-"$python -m pip"}

# The extra `server` has the packages of bridges, clusters, connectors, tokens and telemetry.
$pip install --quiet --disable-pip-version-check --no-compile --no-warn-script-location \
    --root-user-action=ignore --target "$root/usr/lib/trellis" "${wheel}[server]"
rm -rf "$root/usr/lib/trellis/bin"
install -D -m 755 "$here/trellis" "$root/usr/bin/trellis"
install -D -m 644 "$here/broker.toml" "$root/etc/trellis/broker.toml"
install -D -m 600 "$here/trellis.default" "$root/etc/default/trellis"
install -D -m 644 "$here/../systemd/trellis.service" "$root/lib/systemd/system/trellis.service"
sed -f "$here/../systemd/instances.sed" "$here/../systemd/trellis.service" > "$root/lib/systemd/system/trellis@.service"
chmod 644 "$root/lib/systemd/system/trellis@.service"
install -D -m 644 "$here/../../LICENSE" "$root/usr/share/doc/trellis-broker/copyright"
mkdir -p "$root/usr/share/man/man1"
find "$root/usr/lib/trellis" -name trellis.1 -path '*cli*' -exec gzip -9nc {} \; > "$root/usr/share/man/man1/trellis.1.gz"
rm -rf "$root/usr/lib/trellis/share"

mkdir "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<END
Package: trellis-broker
Version: $version
Section: net
Priority: optional
Architecture: $(dpkg --print-architecture)
Maintainer: The Trellis developers <trellis@localhost>
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), adduser, init-system-helpers
Description: message broker for AMQP 0-9-1 and MQTT clients
 AMQP 0-9-1 and MQTT clients meet in one process and one topic space.
 The broker stores queues, sessions and streams in /var/lib/trellis, and
 has metrics, an HTTP API and a web page.
END
printf '/etc/trellis/broker.toml\n/etc/default/trellis\n' > "$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "$here/$script" "$root/DEBIAN/$script"
done
dpkg-deb --build --root-owner-group "$root" "$output"
