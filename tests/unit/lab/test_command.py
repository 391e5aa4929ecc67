"""`reprise lab` at a terminal: the list, one demonstration as text, as JSON and as a plot, and what cannot be shown."""

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from app.lab.arguments import add_arguments
from app.lab.command import EXIT_FINE, EXIT_NOT_SHOWN, run
from app.lab.demonstration import Demonstration, NotDemonstrable, Result, Sheet
from app.lab.registry import ENTRIES, Entry, find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[3]
LIST = """
import argparse, sys
from app.lab.command import run
status = run(argparse.Namespace(name=None, rest=[]))
print(status, sorted({"numpy", "ml_dtypes", "matplotlib", "torch"} & set(sys.modules)))
"""

Capture = pytest.CaptureFixture[str]


def lab(*words: str) -> int:
    """`reprise lab` with these words after it; the exit status."""
    parser = argparse.ArgumentParser(prog="reprise lab")
    add_arguments(parser)
    return run(parser.parse_args(words))


def add_sides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", type=int, default=6)


def throw(options: argparse.Namespace) -> Result:
    """A fake mechanism; it refuses a die without sides."""
    if options.sides < 1:
        raise NotDemonstrable(f"--sides {options.sides} is no die")

    def draw(figure: "Figure") -> None:
        figure.subplots().plot([1, options.sides], label="sides")

    return Result(
        sheets=(Sheet("The die", ("sides", "seed"), ((str(options.sides), str(options.seed)),)),),
        findings=(f"A die has {options.sides} sides.",),
        data={"sides": options.sides},
        draw=draw,
    )


@pytest.fixture
def die(monkeypatch: pytest.MonkeyPatch) -> Callable[[Demonstration], None]:
    """Registers a demonstration as `die`; without a call, that of `throw`."""

    def register(demonstration: Demonstration) -> None:
        monkeypatch.setitem(sys.modules, "app.lab.die", SimpleNamespace(DEMONSTRATION=demonstration))
        monkeypatch.setattr("app.lab.command.find", {"die": Entry("die", "L9", "a die that is thrown")}.get)

    register(Demonstration("First of\nall.\n\nThen.", throw, add_sides))
    return register


def test_the_list_names_every_demonstration_with_its_layer(capsys: Capture) -> None:
    """`reprise lab` alone prints them all, and how to run one."""
    assert lab() == EXIT_FINE

    printed = capsys.readouterr().out
    lines = {line.split()[2]: line for line in printed.splitlines() if line.startswith(" reprise lab ")}
    assert list(lines) == [entry.name for entry in ENTRIES]
    assert all(f" {entry.layer} " in lines[entry.name] for entry in ENTRIES)


def test_the_list_needs_none_of_the_extras() -> None:
    """Printing it imports neither NumPy nor anything else that a demonstration computes or draws with."""
    done = subprocess.run([sys.executable, "-c", LIST], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.parametrize(
    ("name", "hint"), [("butterfy", "did you mean 'butterfly'?"), ("q", "`reprise lab` lists them")]
)
def test_an_unknown_name_is_refused_with_a_suggestion(name: str, hint: str, capsys: Capture) -> None:
    """The nearest name is suggested, or the list where none is near; the exit status is 2."""
    assert lab(name) == EXIT_NOT_SHOWN
    assert capsys.readouterr().err == f"reprise lab: there is no demonstration {name!r}; {hint}\n"


@pytest.mark.usefixtures("die")
def test_a_demonstration_prints_explanation_table_and_findings(capsys: Capture) -> None:
    """Paragraphs are set anew, and options of the demonstration and the seed reach it."""
    assert lab("die", "--sides", "12", "--seed", "7") == EXIT_FINE

    printed = capsys.readouterr().out
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    assert lines[:3] == ["die (L9): a die that is thrown", "First of all.", "Then."]
    assert ["12", "7"] in [line.split() for line in lines]
    assert lines[-1] == "* A die has 12 sides."


@pytest.mark.usefixtures("die")
def test_json_is_one_document_and_nothing_else(capsys: Capture) -> None:
    """It carries the options that made the result, and none that say how it is shown."""
    assert lab("die", "--json") == EXIT_FINE

    assert json.loads(capsys.readouterr().out) == {
        "format": "reprise-lab/1",
        "demonstration": "die",
        "layer": "L9",
        "options": {"sides": 6, "seed": 0},
        "findings": ["A die has 6 sides."],
        "data": {"sides": 6},
    }


def test_what_is_no_json_is_never_printed_as_json(die: Callable[[Demonstration], None], capsys: Capture) -> None:
    """A demonstration that returns NaN is a fault of ours, not a document that no parser reads."""
    die(Demonstration("", lambda _options: Result((), (), {"share": float("nan")}, lambda _figure: None)))

    with pytest.raises(ValueError, match="not JSON compliant"):
        lab("die", "--json")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("name", "start"), [("die.png", b"\x89PNG"), ("die.svg", b"<?xml"), ("DIE.PNG", b"\x89PNG")])
@pytest.mark.usefixtures("die")
def test_a_plot_is_written_in_the_format_of_its_name(name: str, start: bytes, tmp_path: Path, capsys: Capture) -> None:
    """PNG and SVG, and two equal runs write equal files."""
    assert lab("die", "--plot", str(tmp_path / name)) == EXIT_FINE
    assert "Plot: " in capsys.readouterr().out
    first = (tmp_path / name).read_bytes()
    assert lab("die", "--json", "--plot", str(tmp_path / name)) == EXIT_FINE

    assert first.startswith(start)
    assert (tmp_path / name).read_bytes() == first
    assert json.loads(capsys.readouterr().out)["demonstration"] == "die"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("die.pdf", "--plot: 'die.pdf' ends neither in .png nor in .svg"),
        ("die", "--plot: 'die' ends neither in .png nor in .svg"),
        ("none/die.png", "--plot: there is no folder"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(
    place: str, reason: str, tmp_path: Path, die: Callable[[Demonstration], None], capsys: Capture
) -> None:
    """A wrong suffix or a missing folder costs no run, and nothing is printed as if it had been shown."""
    ran: list[argparse.Namespace] = []

    def noted(options: argparse.Namespace) -> Result:
        ran.append(options)
        return Result((), (), {}, lambda _figure: None)

    die(Demonstration("", noted))

    assert lab("die", "--plot", str(tmp_path / place)) == EXIT_NOT_SHOWN

    told = capsys.readouterr()
    assert told.err.startswith(f"reprise lab: {reason}")
    assert (ran, told.out) == ([], "")


@pytest.mark.usefixtures("die")
def test_a_plot_that_fails_to_be_written_says_why(tmp_path: Path, capsys: Capture) -> None:
    """The system's reason, in one line."""
    (tmp_path / "die.png").mkdir()

    assert lab("die", "--plot", str(tmp_path / "die.png")) == EXIT_NOT_SHOWN
    assert capsys.readouterr().err.splitlines() == [
        f"reprise lab: --plot: cannot write {tmp_path / 'die.png'}: Is a directory"
    ]


@pytest.mark.usefixtures("die")
def test_a_plot_without_matplotlib_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The message has the command that installs it here."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert lab("die", "--plot", str(tmp_path / "die.png")) == EXIT_NOT_SHOWN
    assert "--plot needs matplotlib" in capsys.readouterr().err
    assert lab("die") == EXIT_FINE


@pytest.mark.parametrize(
    ("name", "missing", "cure"),
    [
        ("tie", "numpy", "`pip install 'reprise-gateway[lab]'` brings it"),
        ("framework", "torch", "run it in the engine's environment: `.venv-engine/bin/reprise lab framework`"),
    ],
)
def test_a_missing_package_is_named_with_where_to_get_it(
    name: str, missing: str, cure: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """What a demonstration computes with is an extra or the engine's; without it the exit status is 2."""
    monkeypatch.delitem(sys.modules, f"app.lab.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)

    assert lab(name) == EXIT_NOT_SHOWN
    assert capsys.readouterr().err == f"reprise lab: {name} needs {missing}, which is not installed here; {cure}\n"


def test_a_module_of_ours_that_is_missing_is_a_fault_and_not_a_package_to_install() -> None:
    """The error passes, so that a broken installation is not taken for a missing extra."""
    with pytest.raises(ModuleNotFoundError, match=r"app\.lab\.nothing"):
        Entry("nothing", "L2", "").load()


@pytest.mark.usefixtures("die")
def test_options_that_do_not_fit_end_in_one_line(capsys: Capture) -> None:
    """What a demonstration refuses is told on standard error, without a traceback, and the exit status is 2."""
    assert lab("die", "--sides", "0") == EXIT_NOT_SHOWN
    assert capsys.readouterr().err == "reprise lab: --sides 0 is no die\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("die", "--seed", "-1"), "argument --seed: '-1' is not a whole number"),
        (("die", "--sides", "many"), "argument --sides: invalid int value"),
        (("die", "--edges", "3"), "unrecognized arguments: --edges 3"),
        (("--seed", "3", "die"), "unrecognized arguments: --seed"),
    ],
)
@pytest.mark.usefixtures("die")
def test_wrong_options_are_named_and_nothing_is_shown(words: tuple[str, ...], reason: str, capsys: Capture) -> None:
    """A seed that no generator takes, nonsense, an unknown option, or one before the name: the exit status is 2."""
    with pytest.raises(SystemExit) as ended:
        lab(*words)

    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (EXIT_NOT_SHOWN, "")
    assert reason in told.err


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if not entry.torch], ids=lambda entry: entry.name)
def test_every_demonstration_explains_itself_and_its_options(entry: Entry, capsys: Capture) -> None:
    """It loads, has one to three paragraphs, and its help names its own options and the common ones."""
    explanation = entry.load().explanation.strip()
    assert 1 <= len(explanation.split("\n\n")) <= 3

    with pytest.raises(SystemExit) as ended:
        lab(entry.name, "--help")
    told = capsys.readouterr().out
    assert ended.value.code == EXIT_FINE
    assert f"usage: reprise lab {entry.name} " in told
    assert all(option in told for option in ("--seed N", "--json", "--plot FILE"))


def test_the_demonstration_of_torch_is_readable_without_it() -> None:
    """Its module loads where torch is not, as importing anything of ours has no need of the engine."""
    entry = find("framework")
    assert entry is not None
    assert entry.torch

    demonstration = importlib.import_module("app.lab.framework").DEMONSTRATION

    assert len(demonstration.explanation.strip().split("\n\n")) == 2
