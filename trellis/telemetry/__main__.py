"""The program of the telemetry's worker. The broker starts it with the descriptor of a socket."""

import sys

from trellis.telemetry.worker import main

main(int(sys.argv[1]))
