"""The program of the bridges' worker. The broker starts it with the descriptor of a socket."""

import sys

from trellis.bridge.worker import main

main(int(sys.argv[1]))
