"""What observations of PyTorch under its determinism switches say. Needs no PyTorch; `app.lab.framework` observes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.lab.demonstration import Result, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OFF: Final = "off"
WARN: Final = "warn_only"
ON: Final = "on"
SETTINGS: Final = (OFF, WARN, ON)
"""Of ``torch.use_deterministic_algorithms``."""

RAN: Final = "ran"
WARNED: Final = "ran, with a warning"
REFUSED: Final = "refused"

_DOCUMENTED: Final = "documented, needs CUDA"


class Observed(NamedTuple):
    """What happened under one setting of the switch.

    ``put`` is RAN, WARNED or REFUSED: an operation whose result depends on the order of two writes to one place.
    ``fresh_nan_share`` is the share of NaN in memory that nobody has written to. ``sums`` has, for each run of one
    parallel accumulation, the largest error against the exact sums; ``sum_results`` is how many different results the
    runs gave. ``row_differences`` has, for each batch size from 1, the largest difference of row 0 of a matrix product
    to the row alone. ``thread_gaps`` has, for each of some sums, the difference between one thread and several. The
    last two tell whether random numbers came again without a seed, and a convolution with other flags of cuDNN.
    """

    put: str
    fresh_nan_share: float
    sums: tuple[float, ...]
    sum_results: int
    row_differences: tuple[float, ...]
    thread_gaps: tuple[float, ...]
    unseeded_repeats: bool
    convolution_repeats: bool

    @property
    def batch_sizes(self) -> int:
        """How many batch sizes change row 0."""
        return sum(difference > 0 for difference in self.row_differences)

    @property
    def sums_changed(self) -> int:
        """How many sums the number of threads changes."""
        return sum(gap > 0 for gap in self.thread_gaps)


@dataclass(frozen=True, slots=True)
class Observations:
    """One run of the demonstration: ``by_setting`` has an element for each of SETTINGS.

    ``refusal`` is the first sentence of what PyTorch said when it refused. ``unfilled_nan_share`` is that of fresh
    memory with the switch on and its filling off. ``cublas_documented`` tells whether the switch's own documentation
    names CUBLAS_WORKSPACE_CONFIG. ``elements`` is the length of the sums and ``threads`` their number of threads.
    """

    version: str
    cuda: bool
    cudnn: bool
    elements: int
    threads: int
    refusal: str
    unfilled_nan_share: float
    cublas_documented: bool
    by_setting: dict[str, Observed]


def report(seen: Observations) -> Result:
    """The tables, sentences and data of a run."""
    return Result(
        sheets=(_runs(seen), _promises(seen)),
        findings=tuple(_findings(seen)),
        data=_data(seen),
        draw=lambda figure: _draw(figure, seen),
    )


def _runs(seen: Observations) -> Sheet:
    def row(what: str, cell: Callable[[Observed], str]) -> tuple[str, ...]:
        return (what, *(cell(seen.by_setting[setting]) for setting in SETTINGS))

    return Sheet(
        f"Run here, PyTorch {seen.version}, CUDA {'present' if seen.cuda else 'absent'}",
        ("operation", *SETTINGS),
        (
            row("put_ with two values for one place", lambda one: one.put),
            row("memory of torch.empty", lambda one: _nan(one.fresh_nan_share)),
            row(f"index_put_ accumulating {seen.elements:,} values", _sums_cell),
            row("matrix product, row 0 in a batch", _rows_cell),
            row(f"sums of {seen.elements:,}, 1 and {seen.threads} threads", _threads_cell),
            row("random numbers, no seed, twice", lambda one: _same(equal=one.unseeded_repeats)),
            row("conv2d, cuDNN's two flags either way", lambda one: _same(equal=one.convolution_repeats)),
        ),
    )


def _nan(share: float) -> str:
    return "all NaN" if share == 1.0 else f"{100 * share:.2g} % NaN"


def _same(*, equal: bool) -> str:
    return "same bits" if equal else "other bits"


def _sums_cell(one: Observed) -> str:
    return f"{_results(one.sum_results)} in {len(one.sums)} runs"


def _results(count: int) -> str:
    return "1 result" if count == 1 else f"{count} results"


def _rows_cell(one: Observed) -> str:
    return f"changed at {one.batch_sizes} of {len(one.row_differences)} sizes"


def _threads_cell(one: Observed) -> str:
    return f"{one.sums_changed} of {len(one.thread_gaps)} changed"


def _promises(seen: Observations) -> Sheet:
    cublas = "this PyTorch's switch still asks for it" if seen.cublas_documented else "this PyTorch asks for it no more"
    return Sheet(
        "What each switch promises, and what it does not",
        ("switch", "promises", "does not promise", "known from"),
        (
            (
                "use_deterministic_algorithms",
                "same input, shape, software and machine: same bits, or an error",
                "the same row in another batch, other threads, random numbers without a seed",
                "run here",
            ),
            ("its warn_only=True", "a warning in place of the error", "anything about the result", "run here"),
            (
                "fill_uninitialized_memory",
                "what nobody wrote is NaN, not chance",
                "that nobody reads it",
                "run here",
            ),
            (
                "cudnn.deterministic=True",
                "cuDNN convolutions that repeat",
                "matrix products, attention, everything that is not cuDNN",
                _DOCUMENTED,
            ),
            (
                "cudnn.benchmark=False",
                "the algorithm is not chosen by timing it",
                "that the algorithm chosen repeats",
                _DOCUMENTED,
            ),
            (
                "CUBLAS_WORKSPACE_CONFIG=:4096:8",
                "cuBLAS repeats when several streams share a handle",
                f"the same row in another batch; {cublas}",
                _DOCUMENTED,
            ),
        ),
    )


def _findings(seen: Observations) -> Iterator[str]:
    off, on = seen.by_setting[OFF], seen.by_setting[ON]
    yield f"put_ {off.put} with the switch off and {_put_said(on.put)} with it on. {seen.refusal}".strip()
    yield _sums_said(off, on)
    if on.fresh_nan_share == 1.0 and seen.unfilled_nan_share < 1.0:
        yield "Fresh memory is all NaN with the switch on, and is not once fill_uninitialized_memory is off."
    yield _rows_said(on)
    yield _threads_said(on, seen.threads)
    if not on.unseeded_repeats:
        yield "Not promised: with the switch on, random numbers without a seed were others the second time."
    if not seen.cuda:
        yield (
            f"Without CUDA, cuDNN's flags and cuBLAS's variable have nothing to act on; a convolution with the flags "
            f"either way had {_same(equal=on.convolution_repeats)}."
        )


def _put_said(outcome: str) -> str:
    return "is refused" if outcome == REFUSED else outcome


def _sums_said(off: Observed, on: Observed) -> str:
    runs = f"{len(off.sums)} runs of one accumulation gave"
    if on.sum_results > 1:
        return f"Promised and not kept: {runs} {_results(on.sum_results)} with the switch on."
    if off.sum_results == 1:
        return f"No race was seen here: {runs} 1 result, with the switch off too."
    return f"Promised and kept: {runs} {_results(off.sum_results)} with the switch off, and 1 with it on."


def _rows_said(on: Observed) -> str:
    sizes = len(on.row_differences)
    if not on.batch_sizes:
        return (
            f"None found here: row 0 of a matrix product was the same at all {sizes} batch sizes, the switch being on."
        )
    return (
        f"Not promised: with the switch on, row 0 of a matrix product is another than alone at {on.batch_sizes} of "
        f"{sizes} batch sizes, by up to {max(on.row_differences):.2g}. No such switch cures what load does (L2)."
    )


def _threads_said(on: Observed, threads: int) -> str:
    sums = len(on.thread_gaps)
    if not on.sums_changed:
        return f"None found here: {sums} sums were the same on 1 and on {threads} threads, the switch being on."
    return (
        f"Not promised: with the switch on, {on.sums_changed} of {sums} sums are others on {threads} threads than on "
        f"1, by up to {max(on.thread_gaps):.1g}. So the number of threads is part of a replica's posture."
    )


def _data(seen: Observations) -> dict[str, Any]:
    return {
        "torch_version": seen.version,
        "cuda_available": seen.cuda,
        "cudnn_available": seen.cudnn,
        "elements": seen.elements,
        "threads": seen.threads,
        "refusal": seen.refusal,
        "unfilled_nan_share": seen.unfilled_nan_share,
        "cublas_documented": seen.cublas_documented,
        "by_setting": {
            setting: {name: list(value) if isinstance(value, tuple) else value for name, value in one._asdict().items()}
            | {"batch_sizes_that_differ": one.batch_sizes}
            for setting, one in seen.by_setting.items()
        },
    }


def _draw(figure: "Figure", seen: Observations) -> None:
    left, right = figure.subplots(1, 2)
    off, on = seen.by_setting[OFF], seen.by_setting[ON]
    runs: Sequence[int] = range(1, len(off.sums) + 1)
    left.plot(runs, off.sums, "o", color="black", mfc="none", label="switch off")
    left.plot(runs, on.sums, "x-", color="0.4", label="switch on")
    left.set(xlabel="run", ylabel="largest error against the exact sums", xticks=[runs[0], runs[-1]])
    left.set_title("Promised: one accumulation, run again")
    left.legend()
    sizes: Sequence[int] = range(1, len(on.row_differences) + 1)
    right.plot(sizes, off.row_differences, "o", color="black", mfc="none", label="switch off")
    right.plot(sizes, on.row_differences, "x", color="0.4", label="switch on")
    right.set(xlabel="batch size (rows)", ylabel="largest difference of row 0 to the row alone")
    right.set_title("Not promised: one row, other batches")
    right.legend()
