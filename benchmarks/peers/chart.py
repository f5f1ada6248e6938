"""Draws results as bars, written as SVG.

panel            one workload: a title, then one bar per peer, the shortest first
+-- title --------------+
| name  |====== figure  |      colours: Trellis, a peer, a lower bound; legible on white and black
| name  |========= fig. |
+-----------------------+      panels are in two columns

`chart` draws all workloads of a kind on one logarithmic scale. `overview` draws the few workloads
and peers of OVERVIEW, each panel on a linear scale of its own: the length of a bar is its share of
the longest bar.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from peers.results import Figures, Results
from peers.table import FAMILIES, OURS, figure, times, title_of

_WIDTH, _MARGIN, _GAP = 960, 16, 28
# The least width for names left of the bars, and the width for figures right of the bars.
_NAMES, _FIGURES = 108, 52
_LETTER = 7  # The width in pixels of a letter of a name.
_BAR, _STEP, _TITLE, _LINE, _HEAD, _AXIS, _LEGEND = 12, 17, 24, 15, 44, 22, 26
_LETTERS = 60  # The most letters in one line of a panel's title.
_TEXT, _FAINT = "#7d8590", "#7d859055"
_OURS, _PEER, _FLOOR = "#e07b39", "#5b8db8", "#9aa0a6"

#: The workloads of the overview, with titles for readers who do not know the workloads' names.
#: Each protocol has a workload with a large difference between the brokers and one with a small.
OVERVIEW: Final = {
    "mqtt-qos1": "MQTT, QoS 1: messages in quick succession",
    "amqp-ack": "AMQP: confirmed and acknowledged messages",
    "mqtt-50pub": "MQTT, QoS 0: 50 publishers in turn",
    "amqp-64k": "AMQP: messages of 64 KiB",
}
#: The peers of the overview: the brokers that most readers know.
OVERVIEW_PEERS: Final = (OURS, "mosquitto", "nats", "rabbitmq")
# The height of the lines above the panels of the overview, and the width for the text after a bar.
_OVERVIEW_HEAD, _OVERVIEW_FIGURES = 62, 150


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
    bars = _bars(results, workload, tuple(results.peers), value)
    return [Panel(textwrap.wrap(title, _LETTERS), bars)] if bars else []


def _bars(
    results: Results,
    workload: str,
    names: Sequence[str],
    value: Callable[[Figures], float | None],
) -> list[Bar]:
    """Return the bars of the named peers that have a figure of the workload, the shortest first."""
    bars = [
        Bar(peer.title, height, _OURS if name == OURS else _FLOOR if peer.floor else _PEER)
        for name, peer in results.peers.items()
        if name in names
        if (median := results.median(name, workload)) and (height := value(median))
    ]
    return sorted(bars, key=lambda bar: bar.value)


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


def overview(results: Results) -> str:
    """Return the CPU time per message of a few workloads and peers as one SVG picture.

    The picture is empty if the results have none of the workloads.
    """
    panels = [
        (Panel([title], bars), [bar for bar in bars if bar.colour == _OURS])
        for workload, title in OVERVIEW.items()
        if workload in results.workloads
        for bars in [_bars(results, workload, OVERVIEW_PEERS, lambda figures: figures.cpu)]
        if bars
    ]
    if not panels:
        return ""
    width = (_WIDTH - 2 * _MARGIN - _GAP) / 2
    parts, top = [], _OVERVIEW_HEAD
    for row in (panels[index : index + 2] for index in range(0, len(panels), 2)):
        for number, (panel, ours) in enumerate(row):
            parts += _draw_linear(
                panel, _MARGIN + number * (width + _GAP), top, width, ours[0].value if ours else 0
            )
        top += max(panel.height for panel, _ in row)
    title = "CPU time of the broker for one message"
    words = (
        f"us: microseconds; ×: times the figure of Trellis. Measured on {results.date}. "
        "A shorter bar is better; each workload has a scale of its own."
    )
    return "\n".join(
        [
            _opening(_WIDTH, top),
            f"<title>{title}</title>",
            f'<text x="{_MARGIN}" y="24" font-size="16" font-weight="600">{title}</text>',
            f'<text x="{_MARGIN}" y="44">{escape(words)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _draw_linear(panel: Panel, left: float, top: int, width: float, ours: float) -> list[str]:
    """Return the SVG elements of a panel; its longest bar takes the whole width.

    The panel's upper left corner is at (`left`, `top`).

    `ours` is the figure of Trellis, with which the text after
    each bar compares the peer's figure; 0 if Trellis has no figure.
    """
    start, room = left + _NAMES, width - _NAMES - _OVERVIEW_FIGURES
    longest = max(bar.value for bar in panel.bars)
    parts = [
        f'<text x="{left:.1f}" y="{top + 14}" font-weight="600">{escape(panel.title[0])}</text>'
    ]
    for index, bar in enumerate(panel.bars):
        y = top + panel.head + _STEP * index
        length = max(2.0, room * bar.value / longest)
        own = bar.colour == _OURS
        text = f"{figure(bar.value)} us"
        if ours and not own:
            text += f", {times(bar.value / ours)}"
        parts += _draw_bar(bar, start, y, length, text)
    return parts


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
        parts += _draw_bar(bar, start, y, length, figure(bar.value))
    return parts


def _draw_bar(bar: Bar, start: float, y: float, length: float, text: str) -> list[str]:
    """Return SVG: a peer's name, its bar from `start` on at the height `y`, and a text."""
    weight = ' font-weight="600"' if bar.colour == _OURS else ""
    return [
        (
            f'<text x="{start - 6:.1f}" y="{y + 10}" '
            f'text-anchor="end"{weight}>{escape(bar.title)}</text>'
        ),
        (
            f'<rect x="{start:.1f}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" '
            f'fill="{bar.colour}"/>'
        ),
        f'<text x="{start + length + 5:.1f}" y="{y + 10}"{weight}>{text}</text>',
    ]


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
