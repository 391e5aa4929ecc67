"""``reprise simulate`` as a person and a script see it."""

import argparse
import json
from pathlib import Path

import pytest

from app.cli import main
from app.simulation.arguments import GATES, add_arguments
from app.simulation.command import plan_of
from app.simulation.engine import EngineModel
from app.simulation.measured import read_measured
from app.simulation.sweep import LOCKS, horizon
from tests.unit.simulation.documents import document, written

ENGINE = EngineModel(0.4, 0.04, 0.3)
"""Slow, so that few requests fill the simulated time."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A measured run."""
    return written(tmp_path, document(ENGINE))


def parse(*words: str) -> argparse.Namespace:
    """The options as the command line reads them."""
    parser = argparse.ArgumentParser(prog="reprise simulate")
    add_arguments(parser)
    return parser.parse_args(words)


def test_what_is_not_said_is_as_measured(source: Path) -> None:
    """Clients and percentages come from the document, sizes of fleet go up to a thousand."""
    plan = plan_of(parse("--from", str(source)), read_measured(source))

    assert (plan.replicas, plan.clients, plan.percentages) == ((1, 10, 100, 1000), 16, (0.0, 10.0))
    assert (plan.gate, plan.spill) == ("phase-fair", 5.0)


def test_what_is_said_rules(source: Path) -> None:
    """Every option reaches the plan."""
    words = ("--replicas", "2,3", "--clients-per-replica", "4", "--mix", "7", "--gate", "fifo", "--spill", "5")
    plan = plan_of(parse("--from", str(source), *words), read_measured(source))

    assert (plan.replicas, plan.clients, plan.percentages) == ((2, 3), 4, (7.0,))
    assert (plan.gate, plan.spill) == ("fifo", 5.0)


def test_every_gate_that_can_be_named_exists() -> None:
    """The command line's choices are the locks that there are."""
    assert set(GATES) == set(LOCKS)


def test_tables_and_how_far_to_trust_them(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calibration, the measured sweep beside the simulated one, the fleets, and the errors in words."""
    status = main(["simulate", "--from", str(source), "--replicas", "1,2"])

    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    for title in ("the calibration", "the measured sweep, simulated", "fleets, 16 clients per replica"):
        assert title in out
    assert "tokens/s within" in out
    assert "tokens/s off by" in out
    assert "Waits (p50 and p99 of both classes, 4 figures over 0.1 s)" in " ".join(out.split())


def test_json_is_one_document(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json leaves nothing on standard output but the document: engine, comparison, fleets."""
    status = main(["simulate", "--from", str(source), "--replicas", "1,2", "--mix", "0,10", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert document["format"] == "reprise-simulation/1"
    assert document["engine"]["fixed"] == pytest.approx(ENGINE.fixed, rel=0.01)
    assert [(row["replicas"], row["percent"]) for row in document["fleets"]] == [(1, 0), (1, 10), (2, 0), (2, 10)]
    assert document["fleets"][0]["retention"] == 1.0
    assert 0 < document["fleets"][1]["retention"] < 1
    first = document["comparison"][0]
    simulated = first["simulated"]["tokens_per_second"]
    assert first["tokens_per_second_error"] == pytest.approx(simulated / 100.0 - 1)


def test_retention_needs_0_percent(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without 0 % in the list there is nothing to hold against."""
    main(["simulate", "--from", str(source), "--replicas", "1", "--mix", "10", "--json"])

    assert json.loads(capsys.readouterr().out)["fleets"][0]["retention"] is None


def test_a_document_that_cannot_be_used_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing on standard output."""
    path = written(tmp_path, {"format": "reprise-probe/1"})
    status = main(["simulate", "--from", str(path)])

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith(f"reprise simulate: {path} is no document of")
    assert err.count("\n") == 1


def test_a_run_without_a_sweep_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A calibration alone can be simulated from, with --mix; how good that is stays unknown, in words."""
    path = written(tmp_path, document(ENGINE, percentages=()))

    assert main(["simulate", "--from", str(path)]) == 2
    assert "say which with --mix" in capsys.readouterr().err
    assert main(["simulate", "--from", str(path), "--replicas", "1", "--mix", "0"]) == 0
    assert "nothing is known of how well" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--replicas", "0"], ["--replicas", ""], ["--gate", "none"], ["--mix", "200"]])
def test_an_option_that_makes_no_sense_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Argparse's own line and status."""
    with pytest.raises(SystemExit) as caught:
        parse("--from", "x", *words)

    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("replicas", "engine", "settled"),
    [(1, ENGINE, True), (1000, ENGINE, True), (1000, EngineModel(0.001, 0.0), False)],
)
def test_the_horizon_fits_the_fleet(replicas: int, engine: EngineModel, settled: bool) -> None:
    """Long enough for queues to fill, but never more requests than a minute can hold; what is too short says so."""
    length = horizon(engine, replicas, 16, 30.0)

    requests = (length.warmup + length.seconds) * replicas * engine.throughput(16, 25.0) / 25.0
    assert length.settled is settled
    assert requests <= 700_001
    assert settled == (length.warmup + length.seconds >= 120.0)
