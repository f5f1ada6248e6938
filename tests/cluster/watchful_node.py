"""`trellis` with a check of the topic every 0.2 s: python -m tests.cluster.watchful_node serve ...

A node that users start checks the topic every minute (trellis/cluster/topic_watch.py).
"""

from __future__ import annotations

import sys
from typing import Any, cast

from trellis.cli import main
from trellis.cluster import topic_watch

if __name__ == "__main__":
    cast(Any, topic_watch).CHECK_SECONDS = cast(Any, topic_watch).REFUSED_SECONDS = 0.2
    sys.exit(main(sys.argv[1:]))
