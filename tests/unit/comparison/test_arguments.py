"""The options: what is documented, and what has no meaning alone."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from app.comparison.arguments import EVIDENCE, add_compare_arguments, add_replay_arguments, misplaced
from app.determinism.evidence import Evidence

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "compare.md").read_text()


def parser(declare: Callable[[argparse.ArgumentParser], None]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    declare(made)
    return made


@pytest.mark.parametrize("declare", [add_compare_arguments, add_replay_arguments])
def test_every_option_is_documented(declare: Callable[[argparse.ArgumentParser], None]) -> None:
    """docs/compare.md names each of them."""
    options = [name for action in parser(declare)._actions for name in action.option_strings if name.startswith("--")]

    assert len(options) > 8
    assert not [name for name in options if name not in PAGE and name != "--help"]


@pytest.mark.parametrize("option", ["--mode=isolated", "--run=a", "--model=m", "--concurrency=1", "--out=f"])
def test_options_of_a_replay_have_no_meaning_without_one(option: str) -> None:
    """They are named, and with a replay they are not."""
    made = parser(add_compare_arguments)

    assert misplaced(made.parse_args(["a", "b", option])) == (option.partition("=")[0],)
    assert misplaced(made.parse_args(["a", "--replay", option])) == ()


def test_evidence_is_the_gateways() -> None:
    """The options are declared without importing what needs more than the standard library, and must not drift."""
    assert set(EVIDENCE) == {each.value for each in Evidence}
