"""The plots of docs/benchmarks, as SVG that reads on light and on dark: `python plots.py docs/benchmarks`.

Runs in an environment of its own: the product does not know matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matrix import PEERS
from summary import Spread, spreads

INK = "#7a7a7a"  # as far from white as from black
COLOURS = {"perdure": "#d9822b", "floor": "#9a9a9a"}
OTHERS = "#4a8fc7"

PLOTS = (
    ("agent-100.svg", "agent 100", "runs_s", "Runs a second, 100 conversations (logarithmic, more is better)"),
    ("agent-1.svg", "agent 1", "round_ms", "Milliseconds of a round, one conversation (logarithmic, less is better)"),
    ("first.svg", "first after kill -9", "first_ms", "Milliseconds to the first request (logarithmic, less is better)"),
)  # fmt: skip

mpl.rcParams.update({
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "perdure",  # the same file from the same figures
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
})  # fmt: skip


def draw(path: Path, title: str, found: dict[tuple[str, str], Spread]) -> None:
    """A dot for each median, with its number and its range, on a logarithmic scale: lengths would mislead there."""
    order = sorted(found, key=lambda key: found[key].middle)
    least, most = min(each.least for each in found.values()), max(each.most for each in found.values())
    figure = Figure(figsize=(8, 0.9 + 0.32 * len(order)), layout="constrained")
    axes = figure.add_subplot()
    for place, key in enumerate(order):
        values, peer = found[key], key[0]
        colour = COLOURS.get(peer, OTHERS)
        axes.plot([least / 2, most * 3], [place, place], color=INK, linewidth=0.4, alpha=0.5)
        axes.plot([values.least, values.most], [place, place], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot(values.middle, place, "o", color=colour, markersize=9)
        axes.text(values.most * 1.12, place, f" {_number(values.middle)}", va="center", weight="bold")
    axes.set_yticks(range(len(order)), [f"{PEERS[peer]}: {variant}" for peer, variant in order])
    axes.set_xscale("log")
    axes.set_xlim(least / 2, most * 3)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.xaxis.set_major_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(title, fontsize=11, loc="left")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main(folder: Path) -> None:
    rows = json.loads((folder / "results.json").read_text())["rows"]
    for name, case, value, title in PLOTS:
        found = {key: figures[value] for key, figures in spreads(rows, case).items() if value in figures}
        if found:
            draw(folder / name, title, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
