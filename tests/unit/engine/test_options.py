"""What an operator sets of the guard by environment."""

import pytest

from app.engine.guard import Guard
from app.engine.options import GuardOptions
from app.scheduling.gate import GatePolicy
from tests.unit.engine.fakes import FakeServer


def test_nothing_set_is_the_defaults() -> None:
    """An empty variable is none."""
    assert GuardOptions.read({}) == GuardOptions() == GuardOptions.read({"REPRISE_EXCLUSIVE_SHARE": ""})


def test_each_variable_has_its_field() -> None:
    """What is set is what rules."""
    read = GuardOptions.read(
        {
            "REPRISE_EXCLUSIVE_SHARE": "0.25",
            "REPRISE_EXCLUSIVE_PHASE_SECONDS": "4",
            "REPRISE_EXCLUSIVE_KEY_SECONDS": "2.5",
            "REPRISE_QUEUE_SHARED": "7",
            "REPRISE_QUEUE_EXCLUSIVE": "8",
            "REPRISE_QUEUE_TIMEOUT": "9",
            "REPRISE_BODY_TIMEOUT": "10",
            "REPRISE_WRITE_TIMEOUT": "11",
            "REPRISE_GUARD_ADMISSIONS": "12",
        }
    )
    assert read.policy == GatePolicy(0.25, 4.0, 2.5, 7, 8)
    assert (read.queue_timeout, read.body_timeout, read.write_timeout, read.admissions) == (9, 10, 11, 12)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("REPRISE_EXCLUSIVE_SHARE", "0"),
        ("REPRISE_EXCLUSIVE_SHARE", "half"),
        ("REPRISE_EXCLUSIVE_PHASE_SECONDS", "-1"),
        ("REPRISE_EXCLUSIVE_KEY_SECONDS", "0"),
        ("REPRISE_QUEUE_SHARED", "-1"),
        ("REPRISE_QUEUE_EXCLUSIVE", "many"),
        ("REPRISE_QUEUE_TIMEOUT", "0"),
        ("REPRISE_BODY_TIMEOUT", "inf"),
        ("REPRISE_WRITE_TIMEOUT", "nan"),
        ("REPRISE_QUEUE_SHARED", "nan"),
        ("REPRISE_QUEUE_EXCLUSIVE", "0.5"),
        ("REPRISE_EXCLUSIVE_KEY_SECONDS", "inf"),
        ("REPRISE_GUARD_ADMISSIONS", "0"),
        ("REPRISE_GUARD_ADMISSIONS", "inf"),
        ("REPRISE_GUARD_ADMISSIONS", "100000000"),
    ],
)
def test_nonsense_ends_the_start_and_names_the_variable(variable: str, value: str) -> None:
    """A guard that guesses would be none."""
    with pytest.raises(ValueError, match=variable):
        Guard(FakeServer(), environ={variable: value})
