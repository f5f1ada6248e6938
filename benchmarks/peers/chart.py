"""Draws results as bars on a logarithmic scale, written as SVG.

panel            one workload: a title, then one bar per peer, the shortest first
+-- title --------------+
| name  |====== figure  |      colours: Trellis, a peer, a lower bound; legible on white and black
| name  |========= fig. |
+-----------------------+      panels are in two columns, with the same scale in all
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from peers.results import Figures, Results
from peers.table import FAMILIES, OURS, figure, title_of

_WIDTH, _MARGIN, _GAP = 960, 16, 28
# The least width for names left of the bars, and the width for figures right of the bars.
_NAMES, _FIGURES = 108, 52
_LETTER = 7  # The width in pixels of a letter of a name.
_BAR, _STEP, _TITLE, _LINE, _HEAD, _AXIS, _LEGEND = 12, 17, 24, 15, 44, 22, 26
_LETTERS = 60  # The most letters in one line of a panel's title.
_TEXT, _FAINT = "#7d8590", "#7d859055"
_OURS, _PEER, _FLOOR = "#e07b39", "#5b8db8", "#9aa0a6"


class Bar(NamedTuple):
    """A bar of a panel: the name of a peer, its figure, and the bar's colour."""

    title: str
    value: float
    colour: str


class Panel(NamedTuple):
    """The bars of one workload."""

    title: list[str]  # The lines of the panel's title.
    bars: list[Bar]

    @property
    def head(self) -> int:
        """The height of the title in pixels."""
        return _TITLE + _LINE * (len(self.title) - 1)

    @property
    def height(self) -> int:
        """The height of the panel in pixels."""
        return self.head + _STEP * len(self.bars) + _AXIS


def cpu(results: Results, family: str) -> list[Panel]:
    """Return a panel for each workload of a family at full speed, with the broker's CPU time per
    message.
    """
    names = [
        name
        for name, about in results.workloads.items()
        if about["family"] == family and not about["half"]
    ]
    return [
        panel
        for name in names
        for panel in _panel_of(results, name, title_of(results, name), lambda figures: figures.cpu)
    ]


def latency(results: Results) -> list[Panel]:
    """Return a panel for each workload whose latency is measured, with the 99th percentile."""
    panels = []
    for name, about in results.workloads.items():
        before = "" if about["family"] == "crossing" else f"{FAMILIES[about['family']]} "
        panels += _panel_of(
            results, name, before + title_of(results, name), lambda figures: figures.p99
        )
    return panels


def _panel_of(
    results: Results, workload: str, title: str, value: Callable[[Figures], float | None]
) -> list[Panel]:
    """Return a list with the workload's panel, or [] if no peer has a figure."""
    bars = [
        Bar(peer.title, height, _OURS if name == OURS else _FLOOR if peer.floor else _PEER)
        for name, peer in results.peers.items()
        if (median := results.median(name, workload)) and (height := value(median))
    ]
    return (
        [Panel(textwrap.wrap(title, _LETTERS), sorted(bars, key=lambda bar: bar.value))]
        if bars
        else []
    )


def chart(panels: Sequence[Panel], title: str, unit: str) -> str:
    """Return the panels as one SVG picture; an empty string if there are none."""
    if not panels:
        return ""
    low, high = _scale([bar.value for panel in panels for bar in panel.bars])
    columns = _columns(panels)
    height = _HEAD + max(sum(panel.height for panel in column) for column in columns) + _LEGEND
    width = (_WIDTH - 2 * _MARGIN - _GAP) / 2
    names = max(_NAMES, 6 + _LETTER * max(len(bar.title) for panel in panels for bar in panel.bars))
    parts = [
        _opening(_WIDTH, height),
        f"<title>{escape(title)}</title>",
        f'<text x="{_MARGIN}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
    ]
    for number, column in enumerate(columns):
        left, top = _MARGIN + number * (width + _GAP), _HEAD
        for panel in column:
            parts += _draw(panel, left, top, width, names, (low, high))
            top += panel.height
    parts += _legend(
        height - 8, unit, any(bar.colour == _FLOOR for panel in panels for bar in panel.bars)
    )
    return "\n".join([*parts, "</svg>", ""])


def _opening(width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_TEXT}" role="img">'
    )


def _scale(values: Sequence[float]) -> tuple[int, int]:
    """Return the range of the logarithmic axis as two exponents of ten, at least one apart.

    The lower is at or below all values, the higher at or above.
    """
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _columns(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Divide the panels, in reading order, into two columns of about the same height."""
    total, left = sum(panel.height for panel in panels), 0
    cuts: list[tuple[int, int]] = []
    for index, panel in enumerate(panels, 1):
        left += panel.height
        cuts.append((max(left, total - left), index))
    cut = min(cuts)[1]
    return [panels[:cut], panels[cut:]]


def _draw(
    panel: Panel, left: float, top: int, width: float, names: int, scale: tuple[int, int]
) -> list[str]:
    low, high = scale
    start, room = left + names, width - names - _FIGURES
    first, bottom = top + panel.head, top + panel.head + _STEP * len(panel.bars)
    parts = [
        f'<text x="{left:.1f}" y="{top + 14 + _LINE * index}" '
        f'font-weight="600">{escape(line)}</text>'
        for index, line in enumerate(panel.title)
    ]
    for power in range(low, high + 1):
        x = start + room * (power - low) / (high - low)
        parts.append(
            f'<line x1="{x:.1f}" y1="{first - 3}" x2="{x:.1f}" y2="{bottom}" stroke="{_FAINT}"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 11}" font-size="9" '
            f'text-anchor="middle">{_tick(power)}</text>'
        )
    for index, bar in enumerate(panel.bars):
        y = first + _STEP * index
        length = room * max(0.004, (math.log10(bar.value) - low) / (high - low))
        weight = ' font-weight="600"' if bar.colour == _OURS else ""
        parts += [
            (
                f'<text x="{start - 6:.1f}" y="{y + 10}" '
                f'text-anchor="end"{weight}>{escape(bar.title)}</text>'
            ),
            (
                f'<rect x="{start:.1f}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" '
                f'fill="{bar.colour}"/>'
            ),
            f'<text x="{start + length + 5:.1f}" y="{y + 10}"{weight}>{figure(bar.value)}</text>',
        ]
    return parts


def _tick(power: int) -> str:
    """Return the axis label for the power of ten with the exponent `power`, such as "10k"."""
    for least, letter in ((9, "G"), (6, "M"), (3, "k")):
        if power >= least:
            return f"{10 ** (power - least)}{letter}"
    return f"{10.0**power:g}"


def _legend(y: int, unit: str, floors: bool) -> list[str]:
    parts = [
        (
            f'<text x="{_MARGIN}" y="{y}" font-size="11">{escape(unit)}, logarithmic; '
            "shorter is better</text>"
        )
    ]
    if floors:
        parts += [
            f'<rect x="{_WIDTH - 250}" y="{y - 9}" width="10" height="10" rx="2" fill="{_FLOOR}"/>',
            (
                f'<text x="{_WIDTH - 235}" y="{y}" font-size="11">a lower bound: bytes '
                "relayed unread, no broker</text>"
            ),
        ]
    return parts
