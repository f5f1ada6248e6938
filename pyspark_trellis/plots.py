"""Draws the plots of a report as inline SVG, narrow enough to be legible on a phone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")

from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

#: The width in inches: a phone shows 4.6 inches at about full size.
WIDTH: Final = 4.6
#: Colours that are distinguishable with colour blindness (Okabe and Ito).
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
#: The maximum number of series with a legend entry of their own; the other series are combined.
SERIES: Final = 5
_LONGEST: Final = 26
_STYLE: Final[Any] = {
    "font.size": 9.5,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "trellis",
    "axes.axisbelow": True,
}


def short(text: str, most: int = _LONGEST) -> str:
    """Return a name, shortened to its beginning and its end if it has more than `most` characters.

    Dollar signs are escaped, because matplotlib would read text between them as a formula.
    """
    text = text or "(empty)"
    cut = text if len(text) <= most else text[: most // 2 - 1] + "…" + text[-(most // 2) :]
    return cut.replace("$", r"\$")


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure, label: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def over_time(
    title: str,
    unit: str,
    series: dict[str, tuple[Sequence[datetime], Sequence[float]]],
    fill: bool = False,
) -> str:
    """Return a plot of lines over time, as SVG. `series` has the times and the values of each line
    by name; with `fill`, the areas below the lines are filled.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(3.1)
        for colour, (name, (moments, values)) in zip(COLOURS, series.items(), strict=False):
            numbers = dates.date2num(moments)  # type: ignore[no-untyped-call]
            axes.plot(numbers, values, color=colour, linewidth=1.6, label=short(name))
            if fill:
                axes.fill_between(numbers, values, color=colour, alpha=0.25)
        axes.xaxis_date(tz="UTC")
        locator = dates.AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = dates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        axes.set_xlabel("time (UTC)")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        if len(series) > 1:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)
        figure.suptitle(title, fontweight="bold")
        return _svg(figure, title)


def bars(title: str, unit: str, names: Sequence[str], series: dict[str, Sequence[float]]) -> str:
    """Return a plot of horizontal bars as SVG, the first of `names` on top. `series` has the values
    by label; the bars of several series are side by side, with a legend.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(
            1.2 + 0.24 * len(names) * (0.55 + 0.45 * len(series)) + (0.3 if len(series) > 1 else 0)
        )
        wide = 0.8 / len(series)
        for at, (colour, (label, values)) in enumerate(zip(COLOURS, series.items(), strict=False)):
            positions = [bar - 0.4 + wide * (at + 0.5) for bar in range(len(names))]
            axes.barh(positions, values, wide * 0.92, color=colour, label=label)
        axes.set_yticks(range(len(names)), [short(name) for name in names])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.set_xlabel(unit)
        if len(series) > 1:
            figure.legend(loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontweight="bold")
        return _svg(figure, title)


def share(title: str, counts: Sequence[int]) -> str:
    """Return a plot, as SVG, of the cumulative share of the messages over the number of topics, the
    most frequent topic first.

    `counts` is the number of messages of each topic, the largest number first.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(2.9)
        total, had, xs, ys = sum(counts), 0, [], []
        for at, count in enumerate(counts, 1):
            had += count
            xs.append(at)
            ys.append(100 * had / total)
        axes.plot(xs, ys, color=COLOURS[0], linewidth=1.8)
        axes.set_xscale("log")
        axes.set_ylim(0, 102)
        axes.set_xlabel("number of topics, the most frequent first")
        axes.set_ylabel("% of the messages")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        for level in (50, 90):
            at = next(count for count, value in zip(xs, ys, strict=True) if value >= level)
            axes.plot([at], [level], "o", color=COLOURS[1])
            axes.annotate(
                f"{level} %: {at:,}",
                (at, level),
                textcoords="offset points",
                xytext=(7, -13),
                color="#333333",
            )
        figure.suptitle(title, fontweight="bold")
        return _svg(figure, title)
