"""The command line and what it means."""

import argparse
from pathlib import Path

import pytest

from app.determinism.mode import Mode
from app.probe.arguments import add_arguments
from app.probe.experiment import Experiment, NotMeasurable
from app.probe.prompts import BUILT_IN


def parse(*words: str) -> argparse.Namespace:
    """The options as the command line reads them."""
    parser = argparse.ArgumentParser(prog="reprise probe")
    add_arguments(parser)
    return parser.parse_args(words)


def test_defaults() -> None:
    """Without options: the local gateway, four modes, four prompts, and 64 comparisons of 48 tokens per mode."""
    experiment = Experiment.of(parse(), {})

    assert experiment.url == "http://127.0.0.1:8000"
    assert experiment.modes == (Mode.STANDARD, Mode.SEEDED, Mode.ISOLATED, Mode.HARDENED)
    assert (experiment.prompts, len(BUILT_IN)) == (BUILT_IN, 4)
    assert (experiment.comparisons, experiment.requests, experiment.tokens) == (64, 68, 48)
    assert (experiment.temperature, experiment.seed, experiment.model, experiment.api_key) == (0.0, None, None, None)


def test_a_round_asks_every_prompt_once() -> None:
    """Repeats go round by round, and each prompt is repeated as often as asked."""
    experiment = Experiment.of(parse("--repeats", "3"), {})

    assert list(experiment.rounds()) == [0, 1, 2, 3] * 3


def test_together_is_one_question() -> None:
    """A list of prompts is one question with as many choices, on the completions endpoint."""
    experiment = Experiment.of(parse("--together", "--repeats", "5"), {})

    (question,) = experiment.questions
    assert (question.path, question.choices) == ("/v1/completions", 4)
    assert (experiment.comparisons, experiment.requests, list(experiment.rounds())) == (5, 6, [0] * 5)


def test_prompts_come_from_a_file(tmp_path: Path) -> None:
    """One prompt per line; blank lines are none."""
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\n  second \n", encoding="utf-8")

    assert Experiment.of(parse("--prompts", str(path)), {}).prompts == ("first", "second")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_prompts_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    """An empty file and one that is not UTF-8 are named with their fault."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)

    with pytest.raises(NotMeasurable, match="--prompts: "):
        Experiment.of(parse("--prompts", str(path)), {})


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    """The path and the reason are said."""
    with pytest.raises(NotMeasurable, match=r"--prompts: cannot read .*absent: No such file"):
        Experiment.of(parse("--prompts", str(tmp_path / "absent")), {})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://host",
        "http://",
        "http://[::1",
        "http://host:99999",
        "http://xn--/",
        "http://h/?a=1",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Only http and https addresses are taken, before anything is sent."""
    with pytest.raises(NotMeasurable, match="--url"):
        Experiment.of(parse("--url", url), {})


@pytest.mark.parametrize("url", ["http://host:1", "http://host:1/", "http://host:1/v1", "http://host:1/v1/"])
def test_an_address_may_end_as_clients_write_it(url: str) -> None:
    """A trailing slash and OpenAI's /v1 are no part of the address."""
    assert Experiment.of(parse("--url", url), {}).url == "http://host:1"


def test_the_key_comes_from_the_option_then_the_environment() -> None:
    """--api-key wins over OPENAI_API_KEY; an empty variable is none."""
    assert Experiment.of(parse("--api-key", "given"), {"OPENAI_API_KEY": "found"}).api_key == "given"
    assert Experiment.of(parse(), {"OPENAI_API_KEY": "found"}).api_key == "found"
    assert Experiment.of(parse(), {"OPENAI_API_KEY": ""}).api_key is None


@pytest.mark.parametrize("key", ["käse", "a\nb"])
def test_a_key_that_no_header_carries_is_refused(key: str) -> None:
    """It is said, and the key is not shown."""
    with pytest.raises(NotMeasurable, match="--api-key") as caught:
        Experiment.of(parse(), {"OPENAI_API_KEY": key})
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--modes", "exact"], "unknown mode 'exact'"),
        (["--mode", "Isolated"], "did you mean 'isolated'?"),
        (["--modes", "custom"], "unknown mode 'custom'"),
        (["--modes", ","], "unknown mode ','"),
        (["--repeats", "0"], "'0' is not a whole number from 1"),
        (["--repeats", "many"], "'many' is not a whole number"),
        (["--load", "-1"], "'-1' is not a whole number from 0"),
        (["--temperature", "nan"], "'nan' is not a number from 0 to 2"),
        (["--temperature", "warm"], "'warm' is not a number"),
        (["--timeout", "0"], "'0' is not a number"),
    ],
)
def test_a_wrong_value_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with status 2 and the value in question."""
    with pytest.raises(SystemExit) as caught:
        parse(*words)

    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_modes_keep_their_order_and_are_measured_once() -> None:
    """The order is the caller's; a mode named twice is measured once."""
    assert parse("--modes", "isolated, standard,isolated").modes == (Mode.ISOLATED, Mode.STANDARD)
