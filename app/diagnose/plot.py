"""What the page plots is one kind of value: a chart or why there is none, and its figures as a table. Pure."""

from dataclasses import dataclass

from app.diagnose.report import Report


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the page. ``svg`` is None where there is nothing to draw, and ``said`` is why."""

    title: str
    said: str
    svg: str | None = None
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def prompt_name(report: Report, prompt: int) -> str:
    """The text of the prompt at a position, or what a long one is made of."""
    prompts = report.deployment.prompts
    if prompt < len(prompts):
        return prompts[prompt]
    return f"Long prompt {prompt - len(prompts) + 1}: plain words, then one of the prompts"
