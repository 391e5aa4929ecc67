"""Whatever bytes a client sends, the decision about them is a plan or an error of the caller's."""

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.determinism.mode import Mitigation, Mode
from app.determinism.plan import NO_WISH, resolve
from app.determinism.request import parse
from app.determinism.sampling import pin
from app.errors import RepriseError

SERVED = frozenset({"m"})
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
)
ANY = st.recursive(SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=6), x, max_size=3))
NAMES = st.sampled_from([*Mode, *Mitigation, "reject", "report", "x"])
WISH = (
    NAMES
    | ANY
    | st.fixed_dictionaries(
        {},
        optional={"mode": NAMES | ANY, "mitigations": st.lists(NAMES, max_size=3) | ANY, "on_unavailable": NAMES | ANY},
    )
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "m@isolated", "m@x", "@", "x@hardened"]) | ANY,
        "determinism": WISH,
        "temperature": st.sampled_from([0, 0.0, -0.0, 1e-9, 2, "0"]) | ANY,
        "seed": st.sampled_from([-1, 0, 2**63 - 1, 2**70, "1"]) | ANY,
        "messages": ANY,
        "stream": st.booleans() | ANY,
        "priority": ANY,
    },
)


def decide(body: bytes) -> bytes | int:
    """The body for the engine, or the status of the error."""
    try:
        request = parse("/v1/chat/completions", body)
        plan = resolve(request, NO_WISH, Mode.STANDARD, SERVED)
        return pin(request, plan, salt="s", tiny=1e-5).body
    except RepriseError as error:
        return error.status


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    """No byte string is more than a 400."""
    decided = decide(body)
    assert isinstance(decided, bytes) or decided == 400


@settings(max_examples=1500, deadline=None)
@given(MEMBERS)
def test_any_members(members: dict[str, Any]) -> None:
    """Any JSON object is forwarded or a 400; what is forwarded is JSON that names no mode."""
    try:
        body = orjson.dumps(members)
    except orjson.JSONEncodeError:
        return
    decided = decide(body)
    if isinstance(decided, int):
        assert decided == 400
    else:
        assert "determinism" not in orjson.loads(decided)
        assert "priority" not in orjson.loads(decided)
