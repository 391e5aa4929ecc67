"""``reprise lab framework``: what PyTorch's determinism switches do, run with PyTorch itself.

torch is imported inside functions: it exists in the engine's environment only. Whatever is switched is put back.
"""

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from app.lab.demonstration import Demonstration, Result
from app.lab.framework_report import OFF, ON, RAN, REFUSED, SETTINGS, WARN, WARNED, Observations, Observed, report
from app.probe.arguments import integer

_EXPLANATION: Final = """
Below the kernels, the framework chooses: which algorithm a library takes, whether threads add in the order in which
they arrive, what fresh memory holds (layer L3). PyTorch has switches for that, and the gateway's hardened mode asks for
a replica that has them on. They promise that a computation repeats: same input, same shape, same software and machine.
Only PyTorch's own operations ask them; kernels that a server brings itself do not.

They do not promise that a row of a batch is independent of the batch. Below, real operations run with the switch off,
with it warning only, and with it on. What needs a CUDA device, which is not used here, is marked as documented. A race
between threads has no seed: how many different results it gives is another number in each run.
"""

_SIZE: Final = 576
_PLACES: Final = 64
_FRESH: Final = 4096
_SUMS: Final = 16


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        type=integer(2, 1000),
        default=20,
        metavar="N",
        help="runs of the parallel accumulation (default %(default)s)",
    )
    parser.add_argument(
        "--elements",
        type=integer(64, 4_194_304),
        default=262_144,
        metavar="N",
        help="numbers that it adds (default %(default)s)",
    )
    parser.add_argument(
        "--threads", type=integer(2, 64), default=2, metavar="N", help="threads to add with (default %(default)s)"
    )
    parser.add_argument(
        "--max-batch",
        type=integer(2, 256),
        default=64,
        metavar="N",
        help="the largest batch of the matrix product, in rows (default %(default)s)",
    )


def _run(options: argparse.Namespace) -> Result:
    import torch  # noqa: PLC0415 - see the module's docstring

    return report(observe(torch, options))


def observe(torch: Any, options: argparse.Namespace) -> Observations:  # noqa: ANN401 - the module
    """Run everything under each setting of the switch; afterwards torch is set as before."""
    by_setting: dict[str, Observed] = {}
    with _restored(torch):
        torch.set_num_threads(options.threads)
        for setting in SETTINGS:
            _switch(torch, setting)
            by_setting[setting] = _observed(torch, options)
        _switch(torch, ON)
        refusal = _put(torch)[1]
        torch.utils.deterministic.fill_uninitialized_memory = False
        unfilled = _nan_share(torch)
    return Observations(
        version=str(torch.__version__),
        cuda=bool(torch.cuda.is_available()),
        cudnn=bool(torch.backends.cudnn.is_available()),
        elements=options.elements,
        threads=options.threads,
        refusal=refusal,
        unfilled_nan_share=unfilled,
        cublas_documented="CUBLAS_WORKSPACE_CONFIG" in (torch.use_deterministic_algorithms.__doc__ or ""),
        by_setting=by_setting,
    )


@contextmanager
def _restored(torch: Any) -> Iterator[None]:  # noqa: ANN401 - the module
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    flags = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags
        torch.set_num_threads(threads)


def _switch(torch: Any, setting: str) -> None:  # noqa: ANN401 - the module
    torch.use_deterministic_algorithms(setting != OFF, warn_only=setting == WARN)
    torch.utils.deterministic.fill_uninitialized_memory = True


def _observed(torch: Any, options: argparse.Namespace) -> Observed:  # noqa: ANN401 - the module
    random = torch.Generator().manual_seed(options.seed)
    values = torch.randn(options.elements, generator=random)
    places = torch.randint(0, _PLACES, (options.elements,), generator=random)
    errors, results = _accumulated(torch, values, places, options.runs)
    return Observed(
        put=_put(torch)[0],
        fresh_nan_share=_nan_share(torch),
        sums=errors,
        sum_results=results,
        row_differences=_row_differences(torch, options.max_batch, random),
        thread_gaps=_thread_gaps(torch, values, options.threads),
        unseeded_repeats=_unseeded_repeats(torch),
        convolution_repeats=_convolution_repeats(torch, random),
    )


def _put(torch: Any) -> tuple[str, str]:  # noqa: ANN401 - the module
    """The outcome, and the first sentence of a refusal. Which of two values stays is the choice of their order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
        except RuntimeError as exc:
            return REFUSED, f"PyTorch says: {str(exc).partition('. ')[0]}."
    return WARNED if any("deterministic" in str(one.message) for one in caught) else RAN, ""


def _nan_share(torch: Any) -> float:  # noqa: ANN401 - the module
    # Zeros are written and let go first, so that what the allocator hands out again was not NaN by chance.
    for _ in range(4):
        torch.zeros(_FRESH)
    return float(torch.empty(_FRESH).isnan().double().mean())


def _accumulated(torch: Any, values: Any, places: Any, runs: int) -> tuple[tuple[float, ...], int]:  # noqa: ANN401 - torch
    """The largest error of each run, and how many different results there were."""
    exact = torch.zeros(_PLACES, dtype=torch.float64).scatter_add_(0, places, values.double())
    found = [torch.zeros(_PLACES).index_put_((places,), values, accumulate=True) for _ in range(runs)]
    errors = tuple(float((one.double() - exact).abs().max()) for one in found)
    return errors, len({one.numpy().tobytes() for one in found})


def _row_differences(torch: Any, max_batch: int, random: Any) -> tuple[float, ...]:  # noqa: ANN401 - torch
    rows = torch.randn(max_batch, _SIZE, generator=random)
    weights = torch.randn(_SIZE, _SIZE, generator=random)
    alone = (rows[:1] @ weights)[0].double()
    return tuple(float(((rows[:size] @ weights)[0].double() - alone).abs().max()) for size in range(1, max_batch + 1))


def _thread_gaps(torch: Any, values: Any, threads: int) -> tuple[float, ...]:  # noqa: ANN401 - torch
    """The difference that the number of threads makes to each of some sums."""
    found = []
    for number in (1, threads):
        torch.set_num_threads(number)
        found.append([float((values * (1 + factor / _SUMS)).sum()) for factor in range(_SUMS)])
    return tuple(abs(one - more) for one, more in zip(*found, strict=True))


def _unseeded_repeats(torch: Any) -> bool:  # noqa: ANN401 - the module
    return bool(torch.equal(torch.rand(8), torch.rand(8)))


def _convolution_repeats(torch: Any, random: Any) -> bool:  # noqa: ANN401 - torch
    image, kernel = torch.randn(1, 8, 32, 32, generator=random), torch.randn(8, 8, 3, 3, generator=random)
    found = []
    for deterministic in (False, True):
        torch.backends.cudnn.deterministic = deterministic
        torch.backends.cudnn.benchmark = not deterministic
        found.append(torch.nn.functional.conv2d(image, kernel))
    return bool(torch.equal(*found))


DEMONSTRATION: Final = Demonstration(explanation=_EXPLANATION, run=_run, add_arguments=_add_arguments)
