"""When two requests are repeats of each other."""

import hmac
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.determinism.canonical import VOLATILE, CohortKeys, canonical, derived_seed, has_remote_media
from app.determinism.request import parse

CHAT = "/v1/chat/completions"
BASE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "seed": 1}


def form(body: dict[str, Any], path: str = CHAT) -> bytes:
    return canonical(parse(path, orjson.dumps(body)), "m")


@pytest.mark.parametrize("name", sorted(VOLATILE - {"model", "stream"}))
def test_volatile_members_do_not_matter(name: str) -> None:
    """Members that cannot change the tokens leave the cohort alone."""
    assert form(BASE) == form(BASE | {name: 5 if name == "priority" else "anything"})


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.1},
        {"seed": 2},
        {"n": 2},
        {"stop": ["x"]},
        {"max_tokens": 3},
        {"tools": [{"a": 1}]},
        {"some_unknown_member": 1},
        {"messages": [{"role": "user", "content": "ho"}]},
    ],
)
def test_what_can_change_the_answer_matters(change: dict[str, Any]) -> None:
    """Sampling fields, content and unknown members make another cohort."""
    assert form(BASE) != form(BASE | change)


def test_path_and_model_matter() -> None:
    """The same members elsewhere are another request."""
    assert form(BASE) != form(BASE, "/v1/completions")
    request = parse(CHAT, orjson.dumps(BASE))
    assert canonical(request, "m") != canonical(request, "n")


def test_spelling_does_not_matter() -> None:
    """Top-level order, white space, null members and 0 against 0.0 are spelling."""
    other = b'{ "seed": 1, "temperature": 0.0, "stop": null,\n"messages":[{"role":"user","content":"hi"}], "model":"m"}'
    assert form(BASE) == canonical(parse(CHAT, other), "m")
    assert form(BASE) == form(BASE | {"temperature": -0.0})


def test_inner_order_matters() -> None:
    """Chat templates render tool schemas in the order in which they came, so it is part of the prompt."""
    assert form(BASE | {"tools": [{"a": 1, "b": 2}]}) != form(BASE | {"tools": [{"b": 2, "a": 1}]})


def test_large_seeds_stay_apart() -> None:
    """64-bit seeds are not rounded into one cohort."""
    assert form(BASE | {"seed": 2**63 - 1}) != form(BASE | {"seed": 2**63 - 2})


def test_the_key_depends_on_the_installation() -> None:
    """Another installation's key gives other cohort keys; the derived seed does not depend on it."""
    assert CohortKeys(b"a").of(form(BASE)) != CohortKeys(b"b").of(form(BASE))
    assert CohortKeys(b"a").of(form(BASE)) == hmac.digest(b"a", form(BASE), "sha256").hex()
    assert derived_seed(form(BASE)) == derived_seed(form(BASE))


@pytest.mark.parametrize(
    ("part", "remote"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, True),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, False),
        ({"image_url": "https://example.org/a.png"}, True),
        ({"audio_url": "data:audio/wav;base64,AA"}, False),
        ({"type": "text", "text": "https://example.org"}, False),
        ("text", False),
    ],
)
def test_remote_media(part: object, remote: bool) -> None:
    """Media behind a URL may change between two requests; inline media cannot."""
    assert remote is has_remote_media({"messages": [{"role": "user", "content": [part]}, 3, {"content": "x"}]})


@given(st.permutations(sorted(BASE)))
def test_member_order_never_matters(names: list[str]) -> None:
    """Any order of the members is the same cohort."""
    assert form(BASE) == form({name: BASE[name] for name in names})
