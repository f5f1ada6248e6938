"""The program of the bridges' worker, which the broker starts: its argument is a socket."""

import sys

from trellis.bridge.worker import main

main(int(sys.argv[1]))
