# What the install.sh of benchmarks/matching and benchmarks/peers share; they source it. Its messages begin with "peers:".

# What failed gets one line each; install.sh exits with this.
failed=0

say() { echo "peers: $*"; }
fail() {
    echo "peers: $*" >&2
    failed=1
}
have() { command -v "$1" > /dev/null; }
