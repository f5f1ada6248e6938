"""The program of the telemetry's worker, which the broker starts: its argument is a socket."""

import sys

from trellis.telemetry.worker import main

main(int(sys.argv[1]))
