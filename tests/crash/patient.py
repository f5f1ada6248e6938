"""A broker whose deliveries wait for their delivery mark as long as the disk needs.

    python -m tests.crash.patient serve FLAG...       the flags of `trellis serve`

A broker delivers messages without the mark if the disk is slow (MARK_PATIENCE). After a crash, such
messages may come back as not redelivered. On a busy machine every disk is slow, so a test of the
flag `redelivered` needs this broker.
"""

from __future__ import annotations

import sys
from typing import Final

from broker.store import contract
from trellis.cli import main

#: One hour in ms: longer than any test.
PATIENCE_MS: Final = 3_600_000

if __name__ == "__main__":
    contract.MARK_PATIENCE = PATIENCE_MS  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
