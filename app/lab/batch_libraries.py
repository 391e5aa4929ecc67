"""The operations of `app.lab.batch` in the libraries of this machine, each one call on the whole batch.

RMSNorm is ``x / sqrt(mean(x * x) + epsilon)`` without its gain. Source: B. Zhang and R. Sennrich, "Root mean square
layer normalization", NeurIPS 2019. The weights of the matrix product are ``(size, columns)``.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.lab.batch_rows import Operation, RowOfBatch, Rows

EPSILON: Final = 1e-6

MATRIX_PRODUCT: Final = "matrix product"
MEAN_OF_SQUARES: Final = "mean of squares"
RMS_NORM: Final = "RMSNorm"
RMS_NORM_FEATURES_FIRST: Final = "RMSNorm, features first"
"""The same numbers, laid out so that the batch is the last axis in memory."""


def numpy_name() -> str:
    """NumPy's version and the library that multiplies its matrices."""
    config: Any = np.show_config(mode="dicts")  # its type knows fewer members than it has
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"NumPy {np.__version__} ({blas.get('name', 'unknown BLAS')} {blas.get('version', '')})".replace(" )", ")")


def torch_name() -> str:
    """PyTorch's version and its number of threads. Raises ModuleNotFoundError where it is not installed."""
    import torch  # noqa: PLC0415 - present in the engine's environment only

    return f"PyTorch {torch.__version__} ({torch.get_num_threads()} threads)"


def numpy_operations(weights: NDArray[np.float32]) -> tuple[Operation, ...]:
    """NumPy in float32 and in float64."""
    found: list[Operation] = []
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        rows = _numpy_rows(dtype, weights)
        found += (Operation("NumPy", name, dtype.name, row) for name, row in rows.items())
    return tuple(found)


def _numpy_rows(dtype: np.dtype[Any], weights: NDArray[np.float32]) -> dict[str, RowOfBatch]:
    matrix, epsilon = weights.astype(dtype), dtype.type(EPSILON)

    def row(compute: Callable[[NDArray[Any]], NDArray[Any]]) -> RowOfBatch:
        return lambda batch: compute(batch.astype(dtype))[0].astype(np.float64)

    def features_first(batch: Rows) -> NDArray[np.float64]:
        turned = np.ascontiguousarray(batch.T, dtype)
        normal = turned / np.sqrt(np.mean(turned * turned, axis=0) + epsilon)
        return np.ascontiguousarray(normal[:, 0], np.float64)

    return {
        MATRIX_PRODUCT: row(lambda batch: batch @ matrix),
        MEAN_OF_SQUARES: row(lambda batch: np.mean(batch * batch, axis=-1, keepdims=True)),
        RMS_NORM: row(lambda batch: batch / np.sqrt(np.mean(batch * batch, axis=-1, keepdims=True) + epsilon)),
        RMS_NORM_FEATURES_FIRST: features_first,
    }


def torch_operations(weights: NDArray[np.float32]) -> tuple[Operation, ...]:
    """PyTorch in float32 and in bfloat16. Raises ModuleNotFoundError where it is not installed."""
    import torch  # noqa: PLC0415 - present in the engine's environment only

    found: list[Operation] = []
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        rows = _torch_rows(torch, dtype, weights)
        found += (Operation("PyTorch", operation, name, row) for operation, row in rows.items())
    return tuple(found)


def _torch_rows(torch: Any, dtype: Any, weights: NDArray[np.float32]) -> dict[str, RowOfBatch]:  # noqa: ANN401 - torch
    matrix = torch.from_numpy(weights).to(dtype)

    def row(compute: Callable[[Any], Any]) -> RowOfBatch:
        def run(batch: Rows) -> NDArray[np.float64]:
            first: NDArray[np.float64] = compute(torch.from_numpy(batch).to(dtype))[0].double().contiguous().numpy()
            return first

        return run

    def features_first(batch: Any) -> Any:  # noqa: ANN401 - tensors
        turned = batch.T.contiguous()
        return (turned * torch.rsqrt(turned.pow(2).mean(0) + EPSILON)).T

    return {
        MATRIX_PRODUCT: row(lambda batch: batch @ matrix),
        MEAN_OF_SQUARES: row(lambda batch: batch.pow(2).mean(-1, keepdim=True)),
        RMS_NORM: row(lambda batch: batch * torch.rsqrt(batch.pow(2).mean(-1, keepdim=True) + EPSILON)),
        RMS_NORM_FEATURES_FIRST: row(features_first),
    }
