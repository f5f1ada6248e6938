"""A broker that delivers no message before its delivery mark is durable, however slow the disk is.

    python -m tests.crash.patient serve FLAG...       the flags of `trellis serve`

After a crash, a broker sets the flag `redelivered` of the messages up to the mark. If the disk is
slow, a usual broker delivers messages before the mark is durable (MARK_PATIENCE), and may deliver
them after a crash without the flag. On a busy machine every disk is slow, so tests of the flag need
this broker.
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
