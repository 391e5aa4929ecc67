"""What is said of PyTorch's switches follows from what was observed, whichever way it went."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from app.lab.framework_report import OFF, ON, RAN, REFUSED, SETTINGS, WARN, WARNED, Observations, Observed, report

FREE = Observed(
    put=RAN,
    fresh_nan_share=0.0,
    sums=(1e-4, 2e-4, 3e-4),
    sum_results=3,
    row_differences=(0.0, 1e-6, 0.0, 2e-6),
    thread_gaps=(0.0, 1e-5),
    unseeded_repeats=False,
    convolution_repeats=True,
)
BOUND = FREE._replace(put=REFUSED, fresh_nan_share=1.0, sums=(1e-4,) * 3, sum_results=1)
SEEN = Observations(
    version="9.9.9",
    cuda=False,
    cudnn=False,
    elements=1000,
    threads=2,
    refusal="PyTorch says: put_ is not deterministic.",
    unfilled_nan_share=0.0,
    cublas_documented=False,
    by_setting={OFF: FREE, WARN: BOUND._replace(put=WARNED), ON: BOUND},
)


def with_on(**changes: Any) -> Observations:
    """The observations with others under the switch."""
    return replace(SEEN, by_setting={**SEEN.by_setting, ON: BOUND._replace(**changes)})


def said(seen: Observations) -> str:
    return " ".join(report(seen).findings)


def test_the_table_of_runs_has_one_column_per_setting() -> None:
    """Each operation says what it did with the switch off, warning and on."""
    sheet = report(SEEN).sheets[0]
    rows = {row[0]: row[1:] for row in sheet.rows}

    assert sheet.columns[1:] == SETTINGS
    assert rows["put_ with two values for one place"] == (RAN, WARNED, REFUSED)
    assert rows["memory of torch.empty"] == ("0 % NaN", "all NaN", "all NaN")
    assert rows["index_put_ accumulating 1,000 values"] == ("3 results in 3 runs", *["1 result in 3 runs"] * 2)
    assert rows["matrix product, row 0 in a batch"] == ("changed at 2 of 4 sizes",) * 3
    assert rows["sums of 1,000, 1 and 2 threads"] == ("1 of 2 changed",) * 3


def test_what_was_not_run_is_marked_as_documented() -> None:
    """The switches of CUDA's libraries carry the mark, those that were run here do not."""
    basis = {row[0]: row[-1] for row in report(SEEN).sheets[1].rows}

    assert {name for name, known in basis.items() if known == "documented, needs CUDA"} == {
        "cudnn.deterministic=True",
        "cudnn.benchmark=False",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
    }
    assert basis["use_deterministic_algorithms"] == "run here"


@pytest.mark.parametrize(("documented", "text"), [(True, "still asks for it"), (False, "asks for it no more")])
def test_whether_the_switch_asks_for_the_variable_is_read_from_its_documentation(
    *, documented: bool, text: str
) -> None:
    """Versions of PyTorch differ in this, so the table follows the one that ran."""
    assert text in report(replace(SEEN, cublas_documented=documented)).sheets[1].rows[-1][2]


def test_a_promise_kept_is_told_with_its_counts() -> None:
    """The refusal, the race that ended and the filled memory come from the observations."""
    text = said(SEEN)

    assert "put_ ran with the switch off and is refused with it on. PyTorch says: put_ is not deterministic." in text
    assert "Promised and kept: 3 runs of one accumulation gave 3 results with the switch off, and 1 with it on." in text
    assert "Fresh memory is all NaN with the switch on" in text


def test_a_promise_broken_is_not_told_as_kept() -> None:
    """More than one result with the switch on is said first, and memory that is not filled is not claimed to be."""
    text = said(with_on(sum_results=2, fresh_nan_share=0.5))

    assert "Promised and not kept: 3 runs of one accumulation gave 2 results with the switch on." in text
    assert "Promised and kept" not in text
    assert "Fresh memory" not in text


def test_a_race_that_did_not_show_is_not_claimed_to_be_cured() -> None:
    """One result with the switch off too proves nothing about the switch."""
    settings = {**SEEN.by_setting, OFF: FREE._replace(sum_results=1)}

    text = said(replace(SEEN, by_setting=settings))

    assert "No race was seen here: 3 runs of one accumulation gave 1 result, with the switch off too." in text
    assert "Promised and kept" not in text


def test_what_is_not_promised_is_told_with_its_size() -> None:
    """Batch size, thread count and missing seeds act with the switch on."""
    text = said(SEEN)

    assert "row 0 of a matrix product is another than alone at 2 of 4 batch sizes, by up to 2e-06." in text
    assert "1 of 2 sums are others on 2 threads than on 1, by up to 1e-05." in text
    assert "random numbers without a seed were others the second time" in text


def test_effects_that_were_not_seen_are_said_to_be_none() -> None:
    """A machine on which nothing depends on the batch or the threads is reported as that."""
    text = said(with_on(row_differences=(0.0,) * 4, thread_gaps=(0.0, 0.0), unseeded_repeats=True))

    assert "None found here: row 0 of a matrix product was the same at all 4 batch sizes" in text
    assert "None found here: 2 sums were the same on 1 and on 2 threads" in text
    assert "Not promised" not in text


def test_flags_without_a_library_are_said_to_have_nothing_to_act_on() -> None:
    """The sentence is for machines without CUDA only."""
    assert "have nothing to act on; a convolution with the flags either way had same bits." in said(SEEN)
    assert "nothing to act on" not in said(replace(SEEN, cuda=True))


def test_the_data_is_json() -> None:
    """``--json`` can print it, each setting with every observation."""
    data = json.loads(json.dumps(report(SEEN).data, allow_nan=False))

    assert set(data["by_setting"]) == set(SETTINGS)
    assert set(Observed._fields) < set(data["by_setting"][ON])
    assert data["by_setting"][ON]["batch_sizes_that_differ"] == 2


def test_a_plot_shows_the_promise_and_what_is_none() -> None:
    """The left axes have every run, the right ones every batch size, with the switch off and on."""
    figure = Figure()

    report(SEEN).draw(figure)

    left, right = figure.axes
    assert [list(np.asarray(line.get_ydata())) for line in left.lines] == [list(FREE.sums), list(BOUND.sums)]
    assert [list(np.asarray(line.get_ydata())) for line in right.lines] == [list(FREE.row_differences)] * 2
