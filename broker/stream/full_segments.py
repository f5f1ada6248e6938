"""The interface through which a stream reports its full segments."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class FullSegments:
    """A receiver of notices that a stream has full segments which were not reported yet.

    `trellis.topic_summaries` implements it, to summarize the topics of the segments.
    """

    def add(self, directory: str) -> None:
        """Record that a stream, whose files are in `directory`, has new full segments."""
        raise NotImplementedError
