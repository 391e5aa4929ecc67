"""The picture of ``reprise lab moe``: which tokens changed in which batch, and what the capacity has to do with it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from app.lab.moe_batches import Crowding, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(trials: Sequence[Trial], sweep: Sequence[Crowding], factor: float, figure: "Figure") -> None:
    """Left a batch per line and a token per column, right the shares over the capacity factor."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    largest = np.stack([trial.changes.max(axis=1) for trial in trials])
    image = left.imshow(largest, cmap="Greys", aspect="auto", interpolation="nearest", vmin=0)
    left.set(xlabel="token of your request", ylabel="batch", title="Largest change against alone (white: none)")
    left.set_xticks(_ticks(largest.shape[1]), [str(tick + 1) for tick in _ticks(largest.shape[1])])
    left.set_yticks(_ticks(len(trials)), [str(tick + 1) for tick in _ticks(len(trials))])
    figure.colorbar(image, ax=left, label="change of the output", location="bottom")
    limited = [one for one in sweep if one.factor is not None]
    factors = [one.factor for one in limited]
    right.plot(factors, [100 * one.moved_share for one in limited], "ko-", label="your tokens that moved")
    right.plot(factors, [100 * one.overflowed_share for one in limited], "ks--", mfc="none", label="all overflow")
    right.axvline(factor, color="0.5", linestyle=":", label="this run")
    right.set(xlabel="capacity factor", ylabel="share (%)", ylim=(0, None), title="The same batches, other capacities")
    right.legend()


def _ticks(count: int) -> list[int]:
    return list(range(0, count, max(1, count // 8)))
