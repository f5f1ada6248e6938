"""The entry point of the process that makes the summaries of topics; the broker starts it.

The argument is the file descriptor of a socket, on which the broker sends the directories.
"""

import sys

from trellis.topic_summaries.summarizing import main

main(int(sys.argv[1]))
