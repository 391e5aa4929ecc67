"""The picture of ``reprise lab funnel``: how large each layer's effect is, and how it ends all the same."""

from itertools import cycle
from typing import TYPE_CHECKING, Final

import numpy as np

from app.lab.funnel_report import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES: Final = ("k-", "k--", "k-.", "k:")


def draw(outcome: Outcome, figure: "Figure") -> None:
    """Above the changes of the logits and the shares that diverged, below the agreement by token."""
    grid = figure.subplot_mosaic([["changes", "shares"], ["agreement", "agreement"]])
    _changes(outcome, grid["changes"])
    _shares(outcome, grid["shares"])
    _agreement(outcome, grid["agreement"])


def _changes(outcome: Outcome, axes: "Axes") -> None:
    runs = [run for run in outcome.runs if run.effect.touched_share]
    names = [run.name for run in runs]
    axes.plot(names, [run.effect.largest for run in runs], "k^", mfc="none", label="largest")
    axes.plot(names, [run.effect.typical for run in runs], "ko", label="typical, where touched")
    axes.axhline(outcome.margin, color="0.5", linestyle=":", label="median margin of the top two")
    axes.set(yscale="log", ylabel="change (logits)", title="What a layer does to the logits")
    axes.margins(x=0.3, y=0.15)
    axes.legend(fontsize="small")


def _shares(outcome: Outcome, axes: "Axes") -> None:
    names = [run.name for run in outcome.runs]
    places = np.arange(len(names))
    axes.bar(places - 0.2, _percent([run.settled for run in outcome.runs]), 0.4, color="white", ec="k", label="L4 off")
    if outcome.ties:
        axes.bar(places + 0.2, _percent([run.forks for run in outcome.runs]), 0.4, color="0.4", ec="k", label="L4 on")
    axes.set_xticks(places, names)
    axes.set(ylabel="answers that diverged (%)", ylim=(0, 105), title="What it does to the answers")
    axes.legend(fontsize="small")


def _percent(forks: list["np.typing.NDArray[np.intp]"]) -> list[float]:
    return [100 * float(np.mean(one >= 0)) for one in forks]


def _agreement(outcome: Outcome, axes: "Axes") -> None:
    tokens = np.arange(outcome.setting.tokens + 1)
    for style, run in zip(cycle(_STYLES), outcome.runs[1:], strict=False):
        whole = [(run.forks < 0) | (run.forks >= token) for token in tokens]
        axes.step(tokens, [100 * np.mean(one) for one in whole], style, where="post", label=run.name)
    axes.set(xlabel="tokens of the answer", ylabel="answers equal so far (%)", ylim=(-3, 105))
    axes.set_title(f"Agreement, L4 {'on' if outcome.ties else 'off'}")
    if len(outcome.runs) > 1:
        axes.legend(fontsize="small", title="layers on")
