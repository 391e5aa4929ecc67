"""What an answer says of the work that it took."""

from app.verification.report import Report

REPORT = Report(
    window=128,
    grid="chain",
    passes=5,
    repeats=1,
    rollbacks=2,
    drafted=90,
    accepted=70,
    decided=80,
    verifier_seconds=1.23456789,
    first_window=None,
)


def test_the_definition_is_known_before_the_answer() -> None:
    """What it is a function of, besides prompt and posture."""
    assert REPORT.definition() == [("window", 128), ("grid", "chain")]


def test_the_facts_are_those_of_the_whole_answer() -> None:
    """The definition first; seconds as every other header has them."""
    assert REPORT.facts() == [
        ("window", 128),
        ("grid", "chain"),
        ("passes", 5),
        ("rollbacks", 2),
        ("drafted", 90),
        ("accepted", 70),
        ("verifier_seconds", "1.234568"),
    ]
