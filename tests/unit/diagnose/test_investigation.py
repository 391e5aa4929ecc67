"""What a command line asks for, and what it cannot."""

import argparse
from pathlib import Path

import pytest

from app.diagnose.arguments import add_arguments
from app.diagnose.investigation import CANDIDATES, PROMPTS_USED, Investigation
from app.probe.experiment import NotMeasurable
from app.probe.prompts import BUILT_IN


def of(*words: str, **environment: str) -> Investigation:
    """The investigation of a command line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return Investigation.of(parser.parse_args(words), environment)


def test_every_option_reaches_the_investigation(tmp_path: Path) -> None:
    """Nothing that was asked for is lost on the way."""
    path = tmp_path / "prompts.txt"
    path.write_text("first\nsecond\n", encoding="utf-8")

    asked = of(
        *("--url", "http://a/v1", "--model", "m", "--budget", "2m", "--tokens", "32", "--repeats", "4"),
        *("--batch-sizes", "16,4", "--replica", "http://b", "--replica", "https://c/", "--temperature", "0.7"),
        *("--seed", "5", "--no-cures", "--api-key", "k", "--timeout", "9.5", "--prompts", str(path)),
    )

    assert asked == Investigation(
        url="http://a",
        prompts=("first", "second"),
        model="m",
        budget=120.0,
        tokens=32,
        repeats=4,
        sizes=(4, 16),
        temperature=0.7,
        seed=5,
        replicas=("http://b", "https://c"),
        api_key="k",
        timeout=9.5,
        cures=False,
    )


def test_built_in_prompts_are_more_than_are_used() -> None:
    """The ones with the closest choices are chosen from them, so there is a choice, and none is there twice."""
    assert of().prompts == CANDIDATES
    assert set(BUILT_IN) <= set(CANDIDATES)
    assert len(set(CANDIDATES)) == len(CANDIDATES) > PROMPTS_USED


def test_a_long_file_is_looked_at_no_longer_than_the_built_in_ones(tmp_path: Path) -> None:
    """Each candidate costs an answer, so the first dozen of a file are candidates."""
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(f"prompt {number}" for number in range(50)), encoding="utf-8")

    assert of("--prompts", str(path)).prompts == tuple(f"prompt {number}" for number in range(len(CANDIDATES)))


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_prompts_that_cannot_be_read_name_their_option(name: str, tmp_path: Path) -> None:
    """An empty file, and one that is not there."""
    (tmp_path / "empty").write_text("\n")

    with pytest.raises(NotMeasurable, match=r"^--prompts: "):
        of("--prompts", str(tmp_path / name))


@pytest.mark.parametrize(
    "replicas",
    [
        ("http://a",),
        ("http://a/",),
        ("http://a/v1",),
        ("http://b", "http://b"),
        ("http://b", "http://c", "http://b/v1/"),
    ],
)
def test_the_same_server_twice_is_no_replica(replicas: tuple[str, ...]) -> None:
    """The first server, or another replica once more, however its address is written."""
    words = [word for replica in replicas for word in ("--replica", replica)]

    with pytest.raises(NotMeasurable, match=r"^--replica: names the same server twice$"):
        of("--url", "http://a", *words)


@pytest.mark.parametrize("option", ["--url", "--replica"])
@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:99999", "http://h/?a=1", ""])
def test_a_bad_address_names_its_option(option: str, url: str) -> None:
    """Only http and https addresses are taken, and it is said which of them was wrong."""
    with pytest.raises(NotMeasurable, match=rf"^{option}: '.*' is not an http or https address$"):
        of(option, url)


def test_the_key_comes_from_the_option_then_the_environment() -> None:
    """--api-key wins over OPENAI_API_KEY; an empty one is none."""
    assert of("--api-key", "given", OPENAI_API_KEY="found").api_key == "given"
    assert of(OPENAI_API_KEY="found").api_key == "found"
    assert of("--api-key", "", OPENAI_API_KEY="").api_key is None
    assert of().api_key is None


@pytest.mark.parametrize("key", ["käse", "a\nb"])
def test_a_key_that_no_header_carries_is_refused(key: str) -> None:
    """It is said, and the key is not shown."""
    with pytest.raises(NotMeasurable, match=r"^--api-key: ") as caught:
        of(OPENAI_API_KEY=key)
    assert key not in str(caught.value)
