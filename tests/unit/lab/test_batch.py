"""What is said of row 0 agrees with its bits, whatever the library of this machine does with a batch."""

import argparse
import json
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from app.lab.batch import DEMONSTRATION, report
from app.lab.batch_libraries import (
    EPSILON,
    MATRIX_PRODUCT,
    MEAN_OF_SQUARES,
    RMS_NORM,
    RMS_NORM_FEATURES_FIRST,
    numpy_operations,
)
from app.lab.batch_rows import Operation, RowOfBatch, Rows, Survey, spans, survey
from app.lab.demonstration import NotDemonstrable, Result

SMALL = ("--library", "numpy", "--size", "48", "--columns", "20", "--max-batch", "12")
RANDOM = np.random.default_rng(7)
WEIGHTS = RANDOM.standard_normal((48, 48), np.float32)
FIRSTS = RANDOM.standard_normal((2, 48), np.float32)
NEIGHBOURS, OTHERS = RANDOM.standard_normal((2, 11, 48), np.float32)
CHANGES_AT = 5


def run(*words: str) -> Result:
    """The demonstration with these options."""
    parser = argparse.ArgumentParser()
    DEMONSTRATION.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    return DEMONSTRATION.run(parser.parse_args(words))


def in_order(values: NDArray[np.float32]) -> float:
    """A sum of float32 from left to right."""
    return float(np.cumsum(values, dtype=np.float32)[-1])


def one_kernel(batch: Rows) -> NDArray[np.float64]:
    """A matrix product whose row knows nothing of its batch."""
    return np.array([in_order(batch[0] * column) for column in WEIGHTS.T])


def two_kernels(batch: Rows) -> NDArray[np.float64]:
    """A matrix product that adds from the other end once the batch has five rows."""
    return (
        one_kernel(batch) if len(batch) < CHANGES_AT else np.array([in_order((batch[0] * w)[::-1]) for w in WEIGHTS.T])
    )


def scaled_by_batch(batch: Rows) -> NDArray[np.float64]:
    """A matrix product in which the largest number of the batch is everybody's scale."""
    scale = np.float32(np.max(np.abs(batch)))
    return one_kernel(batch / scale) * scale


def surveyed(row: RowOfBatch, name: str = "fake product") -> Survey:
    return survey(Operation("Fake", name, "float32", row), FIRSTS, NEIGHBOURS, OTHERS)


def test_a_kernel_that_changes_with_the_batch_is_found_at_its_size() -> None:
    """From the size on at which the fake adds in another order, row 0 has other bits, and one other result only."""
    found = surveyed(two_kernels)

    assert found.sizes == tuple(range(CHANGES_AT, len(NEIGHBOURS) + 2))
    assert found.distinct == 2
    assert found.by_content == ()
    assert found.changed[CHANGES_AT - 2] == 0 < found.changed[CHANGES_AT - 1] <= found.values
    assert found.differences[CHANGES_AT - 2] == 0 < found.differences[CHANGES_AT - 1] < 1e-3
    assert "(5-12)" in report(["Fake"], [found]).findings[0]


def test_a_kernel_that_never_changes_is_reported_as_none_found() -> None:
    """No difference is said to be none, with no sentence about what matters."""
    result = report(["Fake"], [surveyed(one_kernel)])

    assert result.findings == (
        "None found with this library, at any batch size from 1 to 12: Fake float32 fake product.",
    )
    assert result.sheets[0].rows[0][3:] == ("none", "1", "0 of 96", "0")


def test_neighbours_whose_contents_matter_are_told_from_the_shape() -> None:
    """A scale taken over the batch makes contents matter; then the finding does not blame the shape."""
    result = report(["Fake"], [surveyed(scaled_by_batch)])

    assert result.data["operations"][0]["batch_sizes_where_contents_matter"]
    assert "Other numbers in the neighbours, at the same batch size, changed row 0" in result.findings[-1]
    assert "shape" not in " ".join(result.findings)


def test_a_row_that_does_not_repeat_alone_is_seen() -> None:
    """Batch size 1 is compared with itself too, so noise from run to run does not pass for an effect of the batch."""
    calls = iter(range(1000))

    assert 1 in surveyed(lambda batch: one_kernel(batch) + next(calls)).sizes


def test_a_change_behind_the_sum_is_named() -> None:
    """Where RMSNorm changes and its mean of squares does not, the finding says that it is no order of additions."""
    steady = surveyed(one_kernel, MEAN_OF_SQUARES)

    said = report(["Fake"], [steady, surveyed(two_kernels, RMS_NORM)]).findings
    assert any("its mean of squares has the same bits" in finding for finding in said)
    said = report(["Fake"], [surveyed(two_kernels, MEAN_OF_SQUARES), surveyed(two_kernels, RMS_NORM)]).findings
    assert not any("its mean of squares has the same bits" in finding for finding in said)


def computed(name: str, batch: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """The operation by its definition, in the batch's own format."""
    epsilon = batch.dtype.type(EPSILON)
    if name == RMS_NORM_FEATURES_FIRST:
        turned = batch.T.copy()
        return np.transpose(turned / np.sqrt((turned * turned).mean(axis=0) + epsilon))
    if name == MATRIX_PRODUCT:
        product: NDArray[Any] = batch @ weights
        return product
    squares: NDArray[Any] = (batch * batch).mean(axis=1, keepdims=True)
    return squares if name == MEAN_OF_SQUARES else np.divide(batch, np.sqrt(squares + epsilon))


@pytest.mark.parametrize("operation", numpy_operations(WEIGHTS), ids=lambda operation: operation.label)
def test_the_sizes_reported_of_numpy_are_those_whose_bits_differ(operation: Operation) -> None:
    """Computed again without our code, exactly the reported batch sizes give row 0 other bits than alone."""
    dtype = np.dtype(operation.dtype)

    def bits(size: int) -> list[bytes]:
        batches = [np.vstack((first[None], NEIGHBOURS[: size - 1])).astype(dtype) for first in FIRSTS]
        return [computed(operation.name, batch, WEIGHTS.astype(dtype))[0].tobytes() for batch in batches]

    differ = tuple(size for size in range(1, len(NEIGHBOURS) + 2) if bits(size) != bits(1))

    assert survey(operation, FIRSTS, NEIGHBOURS, OTHERS).sizes == differ
    assert 1 not in differ


def test_equal_options_give_an_equal_result() -> None:
    """A seed repeats the run, and another seed gives other numbers to the same operations."""
    first, again, other = run(*SMALL), run(*SMALL), run(*SMALL, "--seed", "1")

    assert (first.sheets, first.findings, first.data) == (again.sheets, again.findings, again.data)
    assert [one["operation"] for one in other.data["operations"]] == [
        one["operation"] for one in first.data["operations"]
    ]


def test_the_data_is_json() -> None:
    """``--json`` can print it, one element per batch size."""
    document = json.loads(json.dumps(run(*SMALL).data, allow_nan=False))

    assert [one["values"] for one in document["operations"]] == [20, 4, 4 * 48, 4 * 48] * 2
    assert {len(one["result_by_batch_size"]) for one in document["operations"]} == {12}
    assert document["libraries"][0].startswith(f"NumPy {np.__version__} (")


def test_a_plot_has_one_band_per_operation() -> None:
    """The map of batch sizes names every operation and shades it by its results."""
    figure = Figure()
    surveys = [surveyed(one_kernel), surveyed(two_kernels)]

    report(["Fake"], surveys).draw(figure)

    axes = figure.axes[0]
    assert len(axes.get_yticklabels()) == len(surveys)
    shades = np.asarray(axes.collections[0].get_array()).reshape(len(surveys), -1)
    assert [tuple(band) for band in shades] == [one.results for one in surveys]


def test_torch_that_is_not_there_is_said_by_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name, a missing PyTorch is a reason to stop; left to ``auto``, NumPy does."""
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(NotDemonstrable, match=r"--library torch: PyTorch is not installed here"):
        run("--library", "torch", "--size", "16")
    assert len(run("--size", "16", "--max-batch", "2").data["libraries"]) == 1


@pytest.mark.parametrize(
    "words", [("--max-batch", "1"), ("--size", "4"), ("--columns", "0"), ("--size", "x"), ("--library", "jax")]
)
def test_options_out_of_range_are_refused_by_name(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, and nothing runs."""
    with pytest.raises(SystemExit):
        run(*words)
    assert f"argument {words[0]}:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), "none"), ((1,), "1"), ((2, 3, 4, 8), "2-4, 8"), (range(1, 20, 2), "1, 3, 5, 7, and 6 more")],
)
def test_numbers_in_a_row_are_written_as_spans(numbers: tuple[int, ...], text: str) -> None:
    """Ranges are short, and a long list of them is cut with its rest counted."""
    assert spans(numbers) == text
