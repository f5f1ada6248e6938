#!/bin/sh
# Puts OpenLDAP's server slapd and the Python package python-ldap into DIRECTORY, for the tests of amqtt's LDAP plugins.
# slapd comes from Debian's or Ubuntu's packages, which are unpacked but not installed. python-ldap has no wheels, so PYTHON's pip
# compiles it with the headers of these packages.
set -eu
directory=$1
python=$2
[ ! -e "$directory/complete" ] || exit 0

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
missing() {
    echo "trellis: $1; the tests of amqtt's LDAP plugins are skipped"
    exit 0
}
command -v apt-get > /dev/null || missing "apt-get is not on PATH, so slapd cannot be downloaded"
libraries=$(apt-cache depends slapd | sed -n 's/.*Depends: \(lib\(ldap\|odbc\|ltdl\|perl\|wrap\)[^ ]*\)$/\1/p')
(cd "$packages" && apt-get download -qq slapd $libraries libldap-dev libsasl2-dev > log 2>&1) ||
    missing "cannot download slapd from Debian's packages"
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
for package in "$packages"/*.deb; do
    dpkg-deb -x "$package" "$directory/root"
done
lib=$(dirname "$(find "$directory/root/usr/lib" -name 'liblber*.so.*' | head -n 1)")
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec -a slapd %s "$@"\n' "$lib" "$directory/root/usr/sbin/slapd" > "$directory/slapd"
sed -i '1s/.*/#!\/bin\/bash/' "$directory/slapd"
chmod +x "$directory/slapd"
CFLAGS="-I$directory/root/usr/include" LDFLAGS="-L$lib -Wl,-rpath,$lib" "$python" -m pip install --quiet \
    --disable-pip-version-check --target "$directory/python" 'python-ldap>=3.4,<4' ||
    missing "pip cannot compile python-ldap, see above"
touch "$directory/complete"
echo "trellis: unpacked $(basename "$packages"/slapd_*.deb .deb), and installed python-ldap"
