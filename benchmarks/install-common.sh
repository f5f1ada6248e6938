# Sourced by the install.sh of benchmarks/matching and benchmarks/peers. Messages begin with "peers:".

# The exit code of install.sh: 1 after any failure.
failed=0

say() { echo "peers: $*"; }
fail() {
    echo "peers: $*" >&2
    failed=1
}
have() { command -v "$1" > /dev/null; }
