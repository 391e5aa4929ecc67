"""The cheapest way to repeat: what is advised, what it is said to cost, and what is to be sent."""

import json
from dataclasses import replace

import pytest

from app.determinism.mode import DETERMINISTIC_MODES, Mitigation, Mode
from app.determinism.output import CHAT_PATH
from app.determinism.plan import MITIGATIONS_HEADER, MODE_HEADER, NO_WISH, Plan, read_headers, resolve
from app.determinism.request import parse
from app.determinism.statistics import rate_text
from app.diagnose.advice import Advice, advise
from app.diagnose.cure import Cure
from app.diagnose.findings import Count, Finding, State, Suspect
from app.diagnose.forks import gather
from app.diagnose.verdict import Verdict
from tests.unit.diagnose.made import cure

SAME = Finding(Suspect.RUN_TO_RUN, State.NOT_SEEN, "repeats", Count(0, 20), Count(0, 20))


def present(suspect: Suspect, k: int = 3, *, state: State = State.PRESENT) -> Finding:
    """A suspect under which so many of ten answers changed a token."""
    return Finding(suspect, state, "compared", Count(k, 10), Count(max(k, 4), 10))


def verdict(*findings: Finding) -> Verdict:
    """A verdict with these findings; repeats agree where nothing else is said of them."""
    told = {finding.suspect: finding for finding in (SAME, *findings)}
    return Verdict(tuple(told.values()), gather([]))


SHAPE = verdict(present(Suspect.BATCH_SHAPE))
CACHE = verdict(present(Suspect.PREFIX_CACHE))
QUIET = cure(Mode.STANDARD, 0, 16, 200.0)
NOISY = cure(Mode.STANDARD, 9, 16, 200.0)


def on_gateway(judged: Verdict, *cures: Cure) -> Advice:
    """The advice on a gateway whose modes were measured."""
    return advise(judged, cures, gateway=True)


def said(advice: Advice) -> str:
    """All its sentences."""
    return " ".join(advice.sentences)


def nothing_to_send(advice: Advice) -> bool:
    """Whether there is neither header nor body."""
    return not advice.header and not advice.body


@pytest.mark.parametrize("gateway", [True, False])
def test_without_a_verdict_nothing_is_advised(gateway: bool) -> None:
    """A run that ended before its ladder began."""
    advice = advise(None, (), gateway=gateway)

    assert said(advice) == "Nothing was measured, so nothing is advised."
    assert (advice.mode, nothing_to_send(advice)) == (None, True)


def test_where_nothing_changes_standard_is_enough() -> None:
    """Neither on the ladder nor under load: no mode is needed, and the bound is said."""
    advice = on_gateway(verdict(), QUIET, cure(Mode.ISOLATED, 0, 16, 20.0))

    assert advice.mode == "standard"
    assert rate_text(0, 16) in said(advice)
    assert nothing_to_send(advice)


def test_the_cheapest_mode_that_reached_zero_is_advised() -> None:
    """Of those that repeated, the one with the most tokens a second, its cost against standard, and what to send."""
    advice = on_gateway(
        SHAPE,
        NOISY,
        cure(Mode.INVARIANT, 1, 16, 190.0),
        cure(Mode.VERIFIED, 0, 16, 90.0),
        cure(Mode.ISOLATED, 0, 16, 20.0),
    )

    assert advice.mode == "verified"
    assert rate_text(0, 16) in said(advice)
    assert "90 tokens/s" in said(advice)
    assert "0.45 of the 200 of standard" in said(advice)
    assert "0.25 s of waiting" in said(advice)
    assert advice.header == {MODE_HEADER: "verified"}
    assert advice.body == {"determinism": "verified"}


def test_a_mode_that_is_quiet_by_luck_is_no_cure() -> None:
    """Standard and seeded promise nothing, so a run of theirs without a difference is not advised against a layer."""
    advice = on_gateway(SHAPE, QUIET, cure(Mode.SEEDED, 0, 16, 300.0), cure(Mode.ISOLATED, 0, 16, 20.0))

    assert advice.mode == "isolated"


def test_a_mode_that_was_not_confirmed_is_no_cure() -> None:
    """A server that did not say it had been in the mode is not credited with it, and that is why."""
    quiet = cure(Mode.ISOLATED, 0, 16, 20.0)
    unconfirmed = Cure(quiet.mode, replace(quiet.row, confirmed=False), cut=False)

    advice = on_gateway(SHAPE, NOISY, unconfirmed)

    assert (advice.mode, nothing_to_send(advice)) == (None, True)
    assert f"isolated {rate_text(0, 16)}, which the server did not confirm" in said(advice)


def test_a_cost_that_is_not_known_is_not_said() -> None:
    """No standard measured, no wait told: the sentence has the figures that there are."""
    measured = cure(Mode.ISOLATED, 0, 16, 20.0)
    advice = on_gateway(SHAPE, Cure(measured.mode, replace(measured.row, wait=None), cut=True))

    assert advice.mode == "isolated"
    assert "20 tokens/s" in said(advice)
    assert "standard" not in said(advice)
    assert "waiting" not in said(advice)


def test_where_the_cache_alone_changes_tokens_bypassing_it_is_enough() -> None:
    """Quiet under load, and nothing but the cache changed a token: one mitigation, far cheaper than a mode."""
    ties = Finding(Suspect.TIES, State.PRESENT, "ties", Count(2, 2), Count(2, 2))
    advice = on_gateway(verdict(present(Suspect.PREFIX_CACHE), ties), QUIET, cure(Mode.ISOLATED, 0, 16, 20.0))

    assert advice.mode == "cache_bypass"
    assert rate_text(0, 20) in said(advice)
    assert advice.header == {MITIGATIONS_HEADER: "cache_bypass"}
    assert advice.body == {"determinism": {"mitigations": ["cache_bypass"]}}


@pytest.mark.parametrize("judged", [(present(Suspect.PREFIX_CACHE),), (present(Suspect.PREFIX_CACHE), SAME)])
def test_the_bypass_is_vouched_for_by_repeats_that_were_asked(judged: tuple[Finding, ...]) -> None:
    """That answers given alone and cold repeat is said, with its bound, only where it was measured."""
    advice = on_gateway(Verdict(judged, gather([])), QUIET)

    assert advice.mode == "cache_bypass"
    assert ("alone and cold" in said(advice)) == (SAME in judged)


@pytest.mark.parametrize(
    "also",
    [
        present(Suspect.BATCH_SHAPE),
        present(Suspect.BATCH_SHAPE, state=State.UNDECIDED),
        present(Suspect.NEIGHBOUR_CONTENT),
        present(Suspect.KV_LENGTH),
        present(Suspect.RUN_TO_RUN),
        present(Suspect.REPLICA),
        present(Suspect.FAULT),
    ],
    ids=lambda finding: f"{finding.suspect.value}, {finding.state.value}",
)
def test_the_cache_is_not_all_where_something_else_changes_tokens(also: Finding) -> None:
    """Whatever else changed a token, blamed or not yet: a mode is advised, not the bypass."""
    advice = on_gateway(verdict(present(Suspect.PREFIX_CACHE), also), QUIET, cure(Mode.ISOLATED, 0, 16, 20.0))

    assert advice.mode == "isolated"
    assert "Only the prefix cache" not in said(advice)


def test_the_cache_is_not_all_where_standard_diverged_under_load() -> None:
    """The ladder saw the cache alone; the load saw more."""
    assert on_gateway(CACHE, NOISY, cure(Mode.ISOLATED, 0, 16, 20.0)).mode == "isolated"


def test_logprobs_that_differ_need_no_cure() -> None:
    """No token changed."""
    assert on_gateway(verdict(present(Suspect.BATCH_SHAPE, 0, state=State.LOGPROBS_ONLY)), QUIET).mode == "standard"


def test_where_no_mode_repeated_that_is_said() -> None:
    """Each deterministic mode with its figures; those that promise nothing are not held against it."""
    advice = on_gateway(SHAPE, NOISY, cure(Mode.ISOLATED, 2, 16, 20.0), cure(Mode.VERIFIED, 1, 16, 90.0))

    assert advice.mode is None
    assert said(advice).startswith("No deterministic mode was seen to repeat here: ")
    assert f"isolated {rate_text(2, 16)}" in said(advice)
    assert f"verified {rate_text(1, 16)}" in said(advice)
    assert "standard" not in said(advice)
    assert nothing_to_send(advice)


@pytest.mark.parametrize(
    "cures", [(), (NOISY,), (NOISY, cure(Mode.ISOLATED, 0, 0, 0.0))], ids=["none", "standard alone", "one unavailable"]
)
def test_where_no_mode_was_measured_that_is_said(cures: tuple[Cure, ...]) -> None:
    """Nothing is advised without a figure."""
    advice = on_gateway(SHAPE, *cures)

    assert said(advice) == "No deterministic mode was measured, so none is advised."
    assert (advice.mode, nothing_to_send(advice)) == (None, True)


@pytest.mark.parametrize("mode", sorted(DETERMINISTIC_MODES))
def test_what_is_to_be_sent_is_what_the_gateway_takes(mode: Mode) -> None:
    """Header and body of every advice name that mode to the gateway itself."""
    advice = on_gateway(SHAPE, NOISY, cure(mode, 0, 16, 20.0))

    assert _planned_by_header(advice) == _planned_by_body(advice)
    assert _planned_by_body(advice).mode is mode


def test_the_bypass_that_is_to_be_sent_is_one_too() -> None:
    """As above for the one mitigation."""
    advice = on_gateway(CACHE, QUIET)

    assert _planned_by_header(advice) == _planned_by_body(advice)
    assert _planned_by_body(advice).mitigations == {Mitigation.CACHE_BYPASS}


def test_without_a_gateway_a_quiet_server_is_left_alone() -> None:
    """Tokens did not change, so nothing is sold."""
    advice = advise(verdict(), (), gateway=False)

    assert said(advice) == "Tokens did not change."
    assert nothing_to_send(advice)


def test_without_a_gateway_isolation_is_what_repeats() -> None:
    """Alone and cold it repeats, with its bound; how to have that per request is told, and no header is promised."""
    advice = advise(SHAPE, (), gateway=False)

    assert rate_text(0, 20) in said(advice)
    assert "`isolated`" in said(advice)
    assert "./deploy/up --upstream" in said(advice)
    assert (advice.mode, nothing_to_send(advice)) == (None, True)


def test_without_a_gateway_a_server_that_does_not_repeat_has_no_cure() -> None:
    """It differs alone and cold, so no isolation helps."""
    advice = advise(verdict(present(Suspect.RUN_TO_RUN)), (), gateway=False)

    assert "does not repeat when asked alone" in said(advice)
    assert "isolated" not in said(advice)


@pytest.mark.parametrize(
    "judged",
    [
        verdict(Finding(Suspect.RUN_TO_RUN, State.UNTESTED, "it was not tried")),
        verdict(Finding(Suspect.RUN_TO_RUN, State.UNTESTED, "it was not tried"), present(Suspect.BATCH_SHAPE)),
        Verdict((), gather([])),
    ],
    ids=["untested", "untested, and the batch changes tokens", "no finding"],
)
def test_what_was_not_measured_is_not_claimed(judged: Verdict) -> None:
    """Without repeats nobody knows whether the server repeats: neither is said."""
    advice = advise(judged, (), gateway=False)

    assert "was not measured" in said(advice)
    assert "does not repeat" not in said(advice)
    assert "did not change" not in said(advice)


def test_a_fault_is_not_called_repeating() -> None:
    """Its answers are in no count of repeats, so those agree; what no mode cures is said instead."""
    advice = advise(verdict(present(Suspect.FAULT)), (), gateway=False)

    assert "no mode cures that" in said(advice)
    assert "it repeats" not in said(advice)


def _planned_by_header(advice: Advice) -> Plan:
    """The gateway's plan for a request with the advised header."""
    header = read_headers(advice.header.get(MODE_HEADER), advice.header.get(MITIGATIONS_HEADER), None)
    return resolve(parse(CHAT_PATH, _REQUEST), header, Mode.STANDARD, ("m",))


def _planned_by_body(advice: Advice) -> Plan:
    """As above with the advised member."""
    body = json.dumps({**json.loads(_REQUEST), **advice.body}).encode()
    return resolve(parse(CHAT_PATH, body), NO_WISH, Mode.STANDARD, ("m",))


_REQUEST = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
