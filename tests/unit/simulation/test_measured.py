"""Reading a measured run: what is taken over, and how a document that cannot be used is named."""

from pathlib import Path
from typing import Any

import pytest

from app.probe.mix_document import to_mix_document
from app.simulation.engine import EngineModel
from app.simulation.measured import NotUsable, Waits, read_measured
from tests.unit.probe.test_mix_report import POINT, REPORT
from tests.unit.simulation.documents import document, written

ENGINE = EngineModel(0.04, 0.004)


def test_what_the_probe_writes_can_be_read(tmp_path: Path) -> None:
    """The document of a run, as the probe makes it, comes back with its figures."""
    second = POINT.__class__(*(getattr(POINT, name) for name in POINT.__slots__))
    report = REPORT.__class__(REPORT.plan, REPORT.model, REPORT.rows, (POINT, second))
    content = to_mix_document(report)
    content["calibration"][1]["clients"] = 2
    measured = read_measured(written(tmp_path, content))

    assert (measured.model, measured.replicas, measured.clients) == ("tiny", 1, 16)
    assert measured.calibration[0].latencies == ((8, 6, 0.4), (48, 6, 2.4))
    assert measured.calibration[0].answers_per_second == pytest.approx(12 / 15)
    assert [row.percent for row in measured.rows] == [0.0, 10.0]
    assert measured.rows[1].isolated == Waits(2.5, 7.25)
    assert measured.rows[0].isolated is None


def test_a_window_with_failures_is_no_calibration(tmp_path: Path) -> None:
    """A failed request is no answer of the engine: the number of clients is left out."""
    content = document(ENGINE)
    content["calibration"][0]["failed"] = 1

    assert [point.clients for point in read_measured(written(tmp_path, content)).calibration] == [2, 4, 8, 16]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path and the system's reason."""
    with pytest.raises(NotUsable, match=r"cannot read .*none\.json: No such file"):
        read_measured(tmp_path / "none.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_named(tmp_path: Path, content: bytes) -> None:
    """An empty file, a torn one, one that is not text, one nested beyond reason."""
    path = tmp_path / "mix.json"
    path.write_bytes(content)

    with pytest.raises(NotUsable, match=r"mix\.json is not a JSON document"):
        read_measured(path)


@pytest.mark.parametrize("content", [{}, [], None, "x", {"format": "reprise-probe/1"}, {"format": 7}])
def test_another_document_is_named(tmp_path: Path, content: Any) -> None:
    """A document of the other measurement, or of something else, is told apart by its format."""
    with pytest.raises(NotUsable, match=r"no document of `reprise probe --mix --json`: its format is"):
        read_measured(written(tmp_path, content))


@pytest.mark.parametrize("left", [0, 1])
def test_a_document_without_calibration_says_how_to_get_one(tmp_path: Path, left: int) -> None:
    """One number of clients cannot tell what a batch costs."""
    content = document(ENGINE)
    content["calibration"] = content["calibration"][:left]

    with pytest.raises(NotUsable, match=rf"lacks calibration: it holds {left} number.*--calibrate"):
        read_measured(written(tmp_path, content))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("calibration",), None),
        (("settings",), {}),
        (("settings", "clients"), "many"),
        (("settings", "clients"), 0),
        (("sweep", 0, "tokens_per_second"), float("nan")),
        (("sweep", 0, "tokens_per_second"), -1.0),
        (("sweep", 0, "shared"), None),
        (("sweep", 0, "shared", "wait_seconds"), {"p50": 1.0}),
        (("calibration", 0, "seconds"), 0.0),
        (("calibration", 0, "tokens_per_second"), 0.0),
        (("calibration", 0, "latency_by_tokens"), [{"tokens": 8, "answers": 1, "mean_seconds": 0.0}]),
        (("calibration", 0, "replicas"), 3),
    ],
)
def test_a_damaged_document_is_named(tmp_path: Path, path: tuple[str | int, ...], value: Any) -> None:
    """A part that is missing or makes no sense is a line, not a traceback and not a figure."""
    content: Any = document(ENGINE)
    part = content
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value

    with pytest.raises(NotUsable, match=r"mix\.json is damaged: ") as caught:
        read_measured(written(tmp_path, content))
    assert "\n" not in str(caught.value)
