"""`reprise compare` as a person and a script see it: exit status, standard output, standard error, files."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from tests.unit.comparison.made import answer, line, written


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with three files: a, one that is equal to it, and one that is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REPRISE_OBSERVATORY_KEY", raising=False)
    Path("a").write_bytes(written(line("q", answer('{"x": 1}')), line("r", answer("same"))))
    Path("equal").write_bytes(written(line("r", answer("same")), line("q", answer('{"x": 1}'))))
    Path("other").write_bytes(written(line("q", answer('{"x": 2}')), line("r", answer("same"))))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["a", "equal"], 0),
        (["a", "equal", "--fail-on-difference"], 0),
        (["a", "other"], 0),
        (["a", "other", "--fail-on-difference"], 1),
    ],
)
@pytest.mark.usefixtures("files")
def test_the_exit_status(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences are a failure only where they were to be one; the finding is printed all the same."""
    assert main(["compare", *words]) == status
    out, err = capsys.readouterr()
    assert "of 2 agree" in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "missing"], "missing: No such file or directory"),
        (["a"], "two runs are compared, and 1 given"),
        (["a", "equal", "other"], "two runs are compared, and 3 given"),
        (["a", "equal", "--replay"], "--replay takes one file"),
        (["run:a", "--replay"], "--replay takes one file"),
        (["a", "run:b"], "run:b and a file cannot be compared"),
        (["run:a", "run:b", "--any-model"], "--any-model: no meaning"),
        (["run:a", "run:/b"], "run:/b: a label has 1 to 64"),
        (["a", "equal", "--mode", "isolated", "--api-key", "k"], "--mode, --api-key: no meaning without --replay"),
        (["a", "equal", "--extract", "("], "--extract: '(' is not a regular expression"),
        (["a", "equal", "--extract-json", "a..b"], "--extract-json: 'a..b' is not a path"),
        (["a", "equal", "--html", "./a"], "./a: it is read, so it cannot be written"),
        (["a", "equal", "--json", "equal"], "equal: it is read, so it cannot be written"),
        (["a", "equal", "--html", "no/such/folder"], "no/such/folder: No such file or directory"),
        (["a", "--replay", "--out", "a"], "a: it is read, so it cannot be written"),
        (["a", "--replay", "--out", "no/such/folder"], "no/such/folder: No such file or directory"),
        (["a", "--replay", "--url", "nowhere"], "--url: 'nowhere' is not an http or https address"),
        (["a", "--replay", "--run", "a b"], "--run: a label has 1 to 64"),
        (["a", "--replay", "--api-key", "k\u00e9y"], "--api-key: it holds characters"),
        (["run:a", "run:b", "--key", "k\u00e9y"], "--key: it holds characters"),
    ],
)
@pytest.mark.usefixtures("files")
def test_unusable_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and one line on standard error that names the option, file or label."""
    before = Path("a").read_bytes()

    if "--replay" not in words or "--url" not in words:
        words = [*words, "--url", "http://127.0.0.1:9"]
    assert main(["compare", *words]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"reprise compare: {said}")
    assert err.count("\n") == 1
    assert out == "" or "--html" in words
    assert Path("a").read_bytes() == before


def test_a_bad_line_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File and line, as an editor can open them."""
    with (files / "a").open("ab") as file:
        file.write(b'{"path"\n')

    assert main(["compare", "a", "other"]) == 2
    assert capsys.readouterr().err.startswith("reprise compare: a:3: not valid JSON")


@pytest.mark.usefixtures("files")
def test_json_can_take_the_place_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json -`` prints the document and nothing else."""
    assert main(["compare", "a", "other", "--json", "-", "--extract-json", "x", "--fail-on-difference"]) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)

    assert document["format"] == "reprise-compare/1"
    assert document["exit_code"] == 1
    assert document["results"]["flipped"]["k"] == 1
    assert document["results"]["unparsable"] == {"a": 1, "b": 1}
    assert document["differences"][0]["results"] == {"a": ["1"], "b": ["2"], "flipped": True}


def test_json_and_page_can_be_files(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the tables are printed too."""
    assert main(["compare", "a", "other", "--json", "out.json", "--html", "out.html", "--extract", r"\d"]) == 0

    assert "1 of 2 agree" in capsys.readouterr().out
    assert json.loads((files / "out.json").read_text())["agree"] == 1
    assert "<mark>2}</mark>" in (files / "out.html").read_text()


@pytest.mark.usefixtures("files")
def test_meaning_is_measured_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """With the extra's model, and called advisory."""
    assert main(["compare", "a", "other", "--semantic"]) == 0
    assert "(advisory)" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_models_can_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is matched without being asked to, and that is exit status 2; with ``--any-model`` all is."""
    Path("b").write_bytes(Path("a").read_bytes().replace(b'"model": "m"', b'"model": "n"'))

    assert main(["compare", "a", "b"]) == 2
    assert "Nothing was compared" in capsys.readouterr().out
    assert main(["compare", "a", "b", "--any-model"]) == 0
    assert "2 of 2 agree" in capsys.readouterr().out
