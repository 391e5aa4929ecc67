"""The command line of ``reprise diagnose``."""

import argparse

import pytest

from app.diagnose.arguments import FAIL_ON, add_arguments, batch_sizes, duration
from app.diagnose.investigation import BATCH_SIZES, Investigation


def parse(*words: str) -> argparse.Namespace:
    """The options as the command line reads them."""
    parser = argparse.ArgumentParser(prog="reprise diagnose")
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1.5m", 90.0),
        ("0.5h", 1800.0),
        (" 2 m ", 120.0),
        ("5s", 5.0),
        ("24h", 86_400.0),
    ],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    """Seconds where there is none; minutes and hours; from five seconds to a day."""
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "five", "5d", "5 minutes", "-5m", "+5m", "1e3", "4.9s", "24.1h", "nan", "inf", "5m30s", "0"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """The text is named with what one looks like."""
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        duration(text)

    assert str(caught.value) == f"{text!r} is not a time from 5s to 24h, such as 90s or 5m"


@pytest.mark.parametrize(
    ("text", "sizes"), [("2,4,8", (2, 4, 8)), ("8, 2", (2, 8)), ("4,4", (4,)), ("16", (16,)), ("256,2", (2, 256))]
)
def test_batch_sizes_are_ascending_and_each_once(text: str, sizes: tuple[int, ...]) -> None:
    """In whatever order, and however often, they are named."""
    assert batch_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "wrong"), [("", ""), ("1", "1"), ("2,", ""), ("2,x", "x"), ("2,257", "257"), ("2.5", "2.5")]
)
def test_what_is_no_batch_size_is_refused(text: str, wrong: str) -> None:
    """A batch of one is the answer given alone; the part that is wrong is named."""
    with pytest.raises(argparse.ArgumentTypeError, match=rf"^'{wrong}' is not a whole number from 2 to 256$"):
        batch_sizes(text)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--budget", "soon", "'soon' is not a time from 5s to 24h"),
        ("--tokens", "3", "'3' is not a whole number from 4 to 4096"),
        ("--repeats", "1", "'1' is not a whole number from 2 to 64"),
        ("--batch-sizes", "2,1", "'1' is not a whole number from 2 to 256"),
        ("--temperature", "2.1", "'2.1' is not a number from 0 to 2"),
        ("--temperature", "nan", "'nan' is not a number from 0 to 2"),
        ("--timeout", "0", "'0' is not a number from 0.1 to 86400"),
        ("--seed", "x", "invalid int value: 'x'"),
        ("--fail-on", "present", "invalid choice: 'present'"),
    ],
)
def test_a_wrong_value_is_named_with_its_option(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with status 2, the option and the value."""
    with pytest.raises(SystemExit) as caught:
        parse(option, value)

    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert f"argument {option}: " in error
    assert said in error


def test_defaults_are_those_of_an_investigation() -> None:
    """The command without options asks what the value without members asks."""
    arguments = parse()

    assert Investigation.of(arguments, {}) == Investigation("http://127.0.0.1:8000")
    assert arguments.batch_sizes == BATCH_SIZES
    assert (arguments.fail_on, arguments.json, arguments.html) == ("never", False, None)
    assert arguments.budget < duration("5m")


def test_every_option_is_read() -> None:
    """Each reaches the arguments in the unit that is promised."""
    arguments = parse(
        *("--url", "http://a", "--model", "m", "--budget", "2m", "--tokens", "32", "--repeats", "4"),
        *("--batch-sizes", "16,4", "--replica", "http://b", "--replica", "http://c", "--temperature", "0.7"),
        *("--seed", "-3", "--no-cures", "--fail-on", "diverged", "--api-key", "k", "--timeout", "9.5"),
        *("--json", "--html", "page.html", "--prompts", "file"),
    )

    assert (arguments.url, arguments.model, arguments.budget) == ("http://a", "m", 120.0)
    assert (arguments.tokens, arguments.repeats, arguments.batch_sizes) == (32, 4, (4, 16))
    assert (arguments.replica, arguments.temperature, arguments.seed) == (["http://b", "http://c"], 0.7, -3)
    assert (arguments.cures, arguments.fail_on, arguments.api_key, arguments.timeout) == (False, "diverged", "k", 9.5)
    assert (arguments.json, arguments.html, arguments.prompts) == (True, "page.html", "file")


def test_one_command_line_does_not_change_the_next() -> None:
    """Replicas of one run are not those of another."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.parse_args(["--replica", "http://b"])

    assert parser.parse_args([]).replica == []


def test_the_help_names_every_way_to_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be printed, and holds each choice of --fail-on."""
    with pytest.raises(SystemExit) as caught:
        parse("--help")

    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "{" + ",".join(FAIL_ON) + "}" in shown
