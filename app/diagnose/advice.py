"""The cheapest way to repeat on this deployment, with its measured cost and what to send. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.determinism.mode import DETERMINISTIC_MODES, Mode
from app.determinism.plan import MITIGATIONS_HEADER, MODE_HEADER
from app.determinism.statistics import rate_text
from app.diagnose.cure import Cure
from app.diagnose.findings import State, Suspect
from app.diagnose.verdict import Verdict

PRICED: Final = 8
"""Repeats without which tokens per second say little: what was under way at the end of a mode's time is not in them."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, in sentences; ``header`` and ``body`` are what to send, either of them, empty where nothing is."""

    sentences: tuple[str, ...]
    mode: str | None = None
    header: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


def advise(verdict: Verdict | None, cures: tuple[Cure, ...], *, gateway: bool) -> Advice:
    """The advice that follows from the figures."""
    if verdict is None:
        return Advice(("Nothing was measured, so nothing is advised.",))
    if not gateway:
        return _without_gateway(verdict)
    standard = next((cure for cure in cures if cure.mode is Mode.STANDARD), None)
    quiet = standard is not None and standard.measured and standard.row.diverged == 0
    if quiet and not verdict.diverged:
        return _nothing_needed(standard)
    if quiet and _changed(verdict) == {Suspect.PREFIX_CACHE}:
        return _bypass_the_cache(verdict)
    zero = [cure for cure in cures if cure.mode in DETERMINISTIC_MODES and cure.reached_zero]
    if not zero:
        return _no_cure(cures)
    return _mode(max(zero, key=lambda cure: cure.tokens_per_second), standard)


def _mode(cure: Cure, standard: Cure | None) -> Advice:
    mode = cure.mode.value
    said = f"{mode} is the cheapest mode that repeated here: {rate_text(0, cure.row.compared)} diverged under load."
    if cure.row.compared < PRICED:
        cost = "There was too little time to say what it costs; a longer --budget gives it more."
        return Advice((said, cost), mode, {MODE_HEADER: mode}, {"determinism": mode})
    cost = f"It ran {cure.tokens_per_second:.0f} tokens/s, its load's included"
    if standard is not None and standard.row.compared >= PRICED and standard.tokens_per_second:
        share = cure.tokens_per_second / standard.tokens_per_second
        cost += f", {share:.2f} of the {standard.tokens_per_second:.0f} of standard"
    if cure.row.wait is not None:
        cost += f", and added {cure.row.wait.median:.2f} s of waiting (median)"
    return Advice((said, f"{cost}."), mode, {MODE_HEADER: mode}, {"determinism": mode})


def _nothing_needed(standard: Cure | None) -> Advice:
    compared = standard.row.compared if standard is not None else 0
    return Advice((f"Tokens did not change, in standard under load either: {rate_text(0, compared)}.",), "standard")


def _bypass_the_cache(verdict: Verdict) -> Advice:
    found = verdict.of(Suspect.RUN_TO_RUN)
    repeats = "" if found is None or found.tokens.k else f": alone and cold, {rate_text(0, found.tokens.n)} diverged"
    name = "cache_bypass"
    said = f"Only the prefix cache changes answers here, so bypassing it is enough{repeats}. It costs the cache's hits."
    return Advice((said,), name, {MITIGATIONS_HEADER: name}, {"determinism": {"mitigations": [name]}})


def _no_cure(cures: tuple[Cure, ...]) -> Advice:
    measured = [cure for cure in cures if cure.measured and cure.mode in DETERMINISTIC_MODES]
    tried = [f"{cure.mode} {rate_text(cure.row.diverged, cure.row.compared)}{_unconfirmed(cure)}" for cure in measured]
    if not tried:
        return Advice(("No deterministic mode was measured, so none is advised.",))
    return Advice((f"No deterministic mode was seen to repeat here: {'; '.join(tried)}.",))


def _unconfirmed(cure: Cure) -> str:
    return "" if cure.row.confirmed else ", which the server did not confirm"


def _without_gateway(verdict: Verdict) -> Advice:
    found = verdict.of(Suspect.RUN_TO_RUN)
    if found is None or found.state is State.UNTESTED:
        return Advice(("This server offers no modes, and whether it repeats when asked alone was not measured.",))
    if not verdict.diverged:
        return Advice(("Tokens did not change.",))
    if Suspect.FAULT in _changed(verdict):
        said = (
            "Some answers part from their own repeats where the choice was clear: no mode cures that, find the fault."
        )
        return Advice((said,))
    if found.tokens.k:
        return Advice(("This server offers no modes, and does not repeat when asked alone with a cold cache.",))
    said = (
        f"This server offers no modes. Asked alone with a cold cache (a fresh cache_salt) it repeats: "
        f"{rate_text(0, found.tokens.n)} diverged. That is what `isolated` does per request, among other traffic, with "
        f"Reprise before the server: ./deploy/up --upstream URL"
    )
    return Advice((said,))


def _changed(verdict: Verdict) -> set[Suspect]:
    """Under whose conditions tokens changed, blamed or not; ties are no condition."""
    return {finding.suspect for finding in verdict.findings if finding.tokens.k} - {Suspect.TIES}
