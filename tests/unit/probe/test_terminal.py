"""Progress where there is no terminal: a log shows that something goes on, and not more."""

from app.probe.terminal import Lines


def test_a_line_for_what_begins_and_one_now_and_then() -> None:
    """Each mode has its first line at once; after that fifteen seconds pass between two."""
    written: list[str] = []
    now = [100.0]
    lines = Lines(write=written.append, clock=lambda: now[0])

    for _ in range(4):
        lines.advance("standard", 2, 68)
        now[0] += 6.0
    lines.advance("isolated", 1, 68)

    assert written == [
        "reprise probe: standard, 68 requests\n",
        "reprise probe: standard, 8 of 68\n",
        "reprise probe: isolated, 68 requests\n",
    ]
