"""Modes by header, body, suffix and default; mitigations by name; contradictions."""

from typing import Any

import orjson
import pytest

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import DEFAULT_WINDOW, MOST_WINDOW, NO_WISH, OnUnavailable, Plan, Wish, read_headers, resolve
from app.determinism.request import InferenceRequest, parse
from app.errors import InvalidRequest

SERVED = frozenset({"smollm2", "odd@isolated"})


def request(**members: Any) -> InferenceRequest:
    return parse("/v1/chat/completions", orjson.dumps({"model": "smollm2", **members}))


def planned(header: Wish = NO_WISH, default: Mode = Mode.STANDARD, **members: Any) -> Plan:
    return resolve(request(**members), header, default, SERVED)


@pytest.mark.parametrize("mode", list(MODE_MITIGATIONS))
def test_each_way_of_naming_a_mode_gives_the_same_plan(mode: Mode) -> None:
    """Header, body as a name, body as an object, model suffix and default agree."""
    plans = [
        planned(header=Wish(mode)),
        planned(determinism=mode.value),
        planned(determinism={"mode": mode.value}),
        planned(model=f"smollm2@{mode}"),
        planned(default=mode),
    ]

    window = DEFAULT_WINDOW if mode is Mode.VERIFIED else None
    assert [Plan(mode, "smollm2", MODE_MITIGATIONS[mode], window=window)] * 5 == plans


def test_places_may_agree() -> None:
    """Naming one mode three times is no contradiction."""
    plan = planned(header=Wish(Mode.SEEDED), determinism="seeded", model="smollm2@seeded")
    assert (plan.mode, plan.model) == (Mode.SEEDED, "smollm2")


@pytest.mark.parametrize(
    ("header", "members"),
    [
        (Wish(Mode.SEEDED), {"determinism": "isolated"}),
        (Wish(Mode.SEEDED), {"model": "smollm2@isolated"}),
        (NO_WISH, {"determinism": {"mode": "standard"}, "model": "smollm2@isolated"}),
    ],
)
def test_places_that_disagree_are_an_error(header: Wish, members: dict[str, Any]) -> None:
    """No precedence decides for the caller; the error names both places."""
    with pytest.raises(InvalidRequest, match=r"contradictory.* but ") as caught:
        planned(header=header, **members)
    assert caught.value.error_code == "contradictory_mode"


def test_single_mitigations_are_custom_or_add_to_the_mode() -> None:
    """Named alone they make a custom plan and leave the default out; with a mode they are its union."""
    alone = planned(determinism={"mitigations": ["pinned_seed"]}, default=Mode.ISOLATED)
    added = planned(determinism={"mode": "seeded", "mitigations": ["batch_isolation"]})

    assert (alone.mode, alone.mitigations) == (Mode.CUSTOM, frozenset({Mitigation.PINNED_SEED}))
    assert Mode.SEEDED is added.mode
    assert MODE_MITIGATIONS[Mode.SEEDED] | {Mitigation.BATCH_ISOLATION} == added.mitigations
    assert added.exclusive
    assert not alone.exclusive


def test_headers_and_body_add_up() -> None:
    """Mitigations of both places are applied."""
    plan = planned(header=read_headers(None, "eager, pinned_seed", None), determinism={"mitigations": ["cache_bypass"]})
    assert {Mitigation.EAGER, Mitigation.PINNED_SEED, Mitigation.CACHE_BYPASS} == plan.mitigations


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("strict", "determinism"),
        ("custom", "determinism"),
        ({"mode": "exact"}, "determinism.mode"),
        ({"mode": 3}, "determinism.mode"),
        ({"mitigations": "eager"}, "determinism.mitigations"),
        ({"mitigations": ["magic"]}, "determinism.mitigations"),
        ({"mitigations": [1]}, "determinism.mitigations"),
        ({"on_unavailable": "ignore"}, "determinism.on_unavailable"),
        ({"window": 3}, "determinism.window"),
        (["isolated"], "determinism"),
        (1, "determinism"),
    ],
)
def test_a_bad_member_is_named(value: object, param: str) -> None:
    """The error says which field is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        planned(determinism=value)
    assert param == caught.value.param
    assert param in caught.value.message


def test_a_bad_header_is_named() -> None:
    """Unknown names in headers are refused like those in the body."""
    for given, name in (
        (("strict", None, None), "x-determinism-mode"),
        ((None, "magic", None), "x-determinism-mitigations"),
        ((None, None, "ignore"), "x-determinism-on-unavailable"),
        *(((None, None, None, odd), "x-determinism-window") for odd in ("", "-1", "1.5", "many", "\u0661", "9" * 5000)),
    ):
        with pytest.raises(InvalidRequest, match=name):
            read_headers(*given)


def test_null_says_nothing() -> None:
    """`"determinism": null` is as good as left out."""
    assert Mode.STANDARD is planned(determinism=None).mode


def test_suffixes() -> None:
    """A served name is never split, an unknown suffix of one is an error, anything else is the engine's to judge."""
    assert planned(model="odd@isolated").model == "odd@isolated"
    assert planned(model="other@v2").model == "other@v2"
    with pytest.raises(InvalidRequest, match="'model' names no known mode"):
        planned(model="smollm2@strict")


@pytest.mark.parametrize("wish", ["verified", {"mitigations": ["verification"]}, {"mode": "verified", "window": None}])
def test_a_verified_answer_has_a_window(wish: Any) -> None:
    """The operator's where the request names none, in the mode as with its mitigation alone."""
    assert planned(determinism=wish).window == DEFAULT_WINDOW
    named = wish if isinstance(wish, dict) else {"mode": wish}
    assert planned(determinism={**named, "window": 7}).window == 7


def test_a_window_may_be_named_by_header() -> None:
    """As in the body, in the same bounds; what disagrees, or belongs to no verified answer, names its place."""
    header = read_headers("verified", None, None, " 32 ")
    assert planned(header=header).window == 32
    assert planned(header=header, determinism={"window": 32}).window == 32
    for asked, wish, param in (
        (header, {"window": 16}, "determinism.window"),
        (read_headers("isolated", None, None, "32"), None, "x-determinism-window"),
        (read_headers(None, None, None, "32"), None, "x-determinism-window"),
        (read_headers("verified", None, None, "0"), None, "x-determinism-window"),
        (read_headers("verified", None, None, "99999"), None, "x-determinism-window"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            planned(header=asked, determinism=wish)
        assert caught.value.param == param
        assert "window" in caught.value.message


@pytest.mark.parametrize("window", [0, -1, MOST_WINDOW + 1, 1.0, "128", True, [128]])
def test_a_window_is_a_count_of_tokens(window: Any) -> None:
    """Anything else is a 400 that names it."""
    with pytest.raises(InvalidRequest, match=r"'determinism\.window' must be") as caught:
        planned(determinism={"mode": "verified", "window": window})
    assert caught.value.param == "determinism.window"


@pytest.mark.parametrize("mode", ["standard", "isolated", None])
def test_a_window_belongs_to_verified_answers(mode: str | None) -> None:
    """Elsewhere it would mean nothing, and nobody would notice."""
    with pytest.raises(InvalidRequest, match="belongs to the mode 'verified'") as caught:
        planned(determinism={"mode": mode, "window": 128})
    assert caught.value.param == "determinism.window"


@pytest.mark.parametrize("name", ["Isolated", "ISOLATED", "isolatd"])
def test_a_name_that_is_nearly_one_is_refused_with_the_right_one(name: str) -> None:
    """Nothing is guessed; in each of the three places the error says what was probably meant."""
    with pytest.raises(InvalidRequest, match="did you mean 'isolated'"):
        planned(determinism=name)
    with pytest.raises(InvalidRequest, match="did you mean 'isolated'"):
        planned(model=f"smollm2@{name}")
    with pytest.raises(InvalidRequest, match="did you mean 'isolated'"):
        read_headers(name, None, None)


def test_on_unavailable() -> None:
    """Reject is the default; places that disagree are an error."""
    assert OnUnavailable.REJECT is planned(determinism="isolated").on_unavailable
    assert OnUnavailable.REPORT is planned(determinism={"mode": "isolated", "on_unavailable": "report"}).on_unavailable
    with pytest.raises(InvalidRequest, match="disagree"):
        planned(header=Wish(on_unavailable=OnUnavailable.REJECT), determinism={"on_unavailable": "report"})


def test_an_error_does_not_grow_with_what_was_sent() -> None:
    """A megabyte of mode gives a short message."""
    with pytest.raises(InvalidRequest) as caught:
        planned(determinism="x" * 1_000_000)
    assert len(caught.value.message) < 300
