"""The program of the bridges' worker. Its argument is a file descriptor: a socket to the broker."""

import sys

from trellis.bridge.worker import main

main(int(sys.argv[1]))
