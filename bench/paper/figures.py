"""Figures 4 and 5 of the paper as PNG: messages per second over what was sent or read so far."""

from collections.abc import Mapping, Sequence
from pathlib import Path

POINTS = 40


def draw(path: Path, title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """One line a system; x in MB, y logarithmic, so that systems of different magnitude stay apart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (name, line), style in zip(lines.items(), ("-", "--", "-.", ":", "-", "--", "-."), strict=False):
        every = max(1, len(line) // POINTS)
        points = [line[at : at + every] for at in range(0, len(line), every)]
        axes.plot(
            [some[-1][0] for some in points],
            [sum(rate for _, rate in some) / len(some) for some in points],
            style,
            label=name,
            linewidth=1.6,
        )
    axes.set(title=f"{title} performance, 200 B messages", xlabel="MB so far", ylabel="messages/s", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=110)
