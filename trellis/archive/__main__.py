"""The program of the archive's worker, which the broker starts: its argument is a socket."""

import sys

from trellis.archive.worker import main

main(int(sys.argv[1]))
