"""`python -m trellis` is the command `trellis`."""

import sys

from trellis.cli import main

if __name__ == "__main__":
    sys.exit(main())
