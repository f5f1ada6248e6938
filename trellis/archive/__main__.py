"""The program of the archive's worker, which the broker starts.

The argument is the file descriptor of a socket that is connected to the broker.
"""

import sys

from trellis.archive.worker import main

main(int(sys.argv[1]))
