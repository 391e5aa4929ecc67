"""Which verifier is chosen, that its posture is pinned, and who is asked when it fails."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

from app.determinism.mode import MODE_MITIGATIONS, Mitigation, Mode
from app.determinism.plan import OnUnavailable, Plan
from app.determinism.posture import Provision
from app.determinism.request import parse
from app.errors import DeterminismUnavailable, InvalidRequest, ModelNotFound, NotReady, QueueFull, UpstreamError
from app.scheduling.lease import Lease
from app.scheduling.scheduler import Scheduler
from app.scheduling.ticket import Admission
from app.upstream.drain import DrainProof
from app.upstream.replica import Replica, ReplicaStatus
from app.verification.facts import ModelFacts
from app.verification.grid import Grid
from app.verifier.errands import Lost, Sender, Told, other_posture
from app.verifier.passes import Verifier, chain_key, choose
from tests.unit.verification.test_facts import TOLD

pytestmark = pytest.mark.anyio

A, B, C = (Replica.at(f"http://127.0.0.1:{port}") for port in (1, 2, 3))
PLAN = Plan(Mode.VERIFIED, "m", MODE_MITIGATIONS[Mode.VERIFIED], window=8)
GRID = Grid.of(8, 20, 100, 16, prefix_caching=True)
WANTED = GRID.deciding(20)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def status(*, digest: str = "p-1", invariant: bool = False, verifies: bool = True, **changed: Any) -> ReplicaStatus:
    holds = dict.fromkeys(Mitigation, True)
    holds |= {Mitigation.BATCH_INVARIANCE: invariant, Mitigation.VERIFICATION: verifies}
    known = ReplicaStatus(
        healthy=True,
        problem="",
        models=({"id": "m"},),
        guarded=True,
        digest=digest,
        provisions={name: Provision(held=held, reason=f"{name} is off") for name, held in holds.items()},
        max_logprobs=20,
        model=ModelFacts.from_mapping(TOLD),
    )
    return replace(known, **changed)


def scheduler(*statuses: ReplicaStatus) -> Scheduler:
    replicas = (A, B, C)[: len(statuses)]
    made = Scheduler(replicas, cast(DrainProof, None), clock=lambda: 0.0)
    for replica, known in zip(replicas, statuses, strict=True):
        made.update(replica, known)
    return made


@pytest.mark.parametrize(("invariant", "needed"), [(False, "batch_isolation"), (True, "batch_invariance")])
def test_a_pass_runs_alone_unless_no_kernel_depends_on_its_batch(invariant: bool, needed: str) -> None:
    """What the request itself asks for stays; a pass adds what it needs."""
    chosen = choose(scheduler(status(invariant=invariant)), PLAN)
    assert chosen.plan.mitigations == PLAN.mitigations | {Mitigation(needed)}
    assert chosen.plan.exclusive is not invariant
    assert (chosen.replica, chosen.posture, chosen.name, chosen.most_logprobs) == (A, "p-1", "m", 20)


def test_no_report_replaces_a_verifier() -> None:
    """Where nobody can verify there is no answer, whatever the caller would put up with."""
    lenient = replace(PLAN, on_unavailable=OnUnavailable.REPORT)
    with pytest.raises(DeterminismUnavailable, match="'verification' is unavailable: verification is off"):
        choose(scheduler(status(verifies=False)), lenient)
    assert choose(scheduler(status()), lenient).plan.on_unavailable is OnUnavailable.REJECT


@pytest.mark.parametrize("most", [0, 1])
def test_ties_must_be_seen(most: int) -> None:
    """A verifier that shows less than two logprobs decides nothing; one that shows all of them is asked for fewer."""
    with pytest.raises(DeterminismUnavailable, match="no tie can be seen"):
        choose(scheduler(status(max_logprobs=most)), PLAN)
    assert choose(scheduler(status(max_logprobs=49_152)), PLAN).most_logprobs == 128


def test_an_adapter_is_no_model_of_its_own() -> None:
    """Passes run without it."""
    models = ({"id": "m", "parent": None}, {"id": "tuned", "parent": "m"}, {"id": "alias", "root": "m"})
    served = scheduler(status(models=models))
    with pytest.raises(InvalidRequest, match="adapter") as caught:
        choose(served, replace(PLAN, model="tuned"))
    assert caught.value.param == "model"
    with pytest.raises(ModelNotFound):
        choose(served, replace(PLAN, model="other"))


@pytest.mark.parametrize("asked", [None, "m", "alias"])
def test_an_answer_names_the_model_as_vllm_does(asked: str | None) -> None:
    """By its first name, whatever the caller called it, and whatever sorts before it."""
    models = ({"id": "a-tuned-one", "parent": "m"}, {"id": "m", "parent": None}, {"id": "alias", "root": "m"})
    assert choose(scheduler(status(models=models)), replace(PLAN, model=asked)).name == "m"


def test_a_preview_founds_no_pool() -> None:
    """It only looks."""
    served = scheduler(status())
    choose(served, PLAN, establish=False)
    assert served.pools.established() == ()
    choose(served, PLAN)
    assert len(served.pools.established()) == 1


class Wire:
    """A sender whose replicas answer what the test says: an answer, or an error that is theirs."""

    request_id = "r"

    def __init__(self, served: Scheduler, **answers: Any) -> None:
        self.scheduler = served
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.preferred: list[Replica | None] = []
        self.contents: list[Any] = []
        self.postures = {A: "p-1", B: "p-1", C: "p-1"}
        self.peak = 1

    def _answer(self, replica: Replica, path: str, name: str, content: Any) -> Any:
        letter = "ABC"[(A, B, C).index(replica)]
        self.asked.append((letter, name))
        self.contents.append(content)
        answer = self.answers.get(letter, good)
        found = answer(path, content) if callable(answer) else answer
        if isinstance(found, InvalidRequest):
            raise found
        if isinstance(found, Exception):
            raise Lost(replica, cast(Any, found))
        return found

    async def leased(
        self,
        plan: Plan,
        path: str,
        name: str,
        content: Any,
        *,
        posture: str | None = None,
        without: Replica | None = None,
        prefer: Replica | None = None,
    ) -> Told:
        """As `Sender.leased`."""
        self.preferred.append(prefer)
        slot, _ = self.scheduler.choose(plan, without=without, prefer=prefer)
        if slot.status.digest != posture:
            raise other_posture(slot.replica, slot.status.digest, str(posture))
        said = self._answer(slot.replica, path, name, content)
        lease = Lease(slot.replica, slot.status, Admission.EXCLUSIVE, (), {}, 0.5, None, self.postures[slot.replica])
        return Told(said, lease, self.peak)

    async def aside(self, replica: Replica, path: str, name: str, content: Any, *, callers: bool = False) -> Any:
        """As `Sender.aside`."""
        assert callers is (path == "/reprise/render")
        return self._answer(replica, path, name, content)


def good(path: str, content: Any) -> Any:
    if path != "/reprise/score":
        return {"ids": [1, 2, 3], "text": "x"}
    count = len(content["ids"]) - content["first"] + 1
    ids, logprobs = [list(range(content["k"]))] * count, [[-1.0 - n for n in range(content["k"])]] * count
    return {"ids": ids, "logprobs": logprobs, "cached": content["cached"] or 0, "seconds": 0.25}


def verifier(wire: Wire) -> Verifier:
    return Verifier(cast(Sender, wire), choose(wire.scheduler, PLAN), b"key")


async def score(made: Verifier) -> int:
    return len(await made.score(WANTED, list(range(WANTED.total)), 2, GRID))


async def test_what_a_pass_is_asked() -> None:
    """The members of the wire, with a salt that is a function of key and prefix alone; and what it told is kept."""
    wire = Wire(scheduler(status()))
    made = verifier(wire)
    assert await score(made) == WANTED.last - WANTED.first + 1
    wire.peak = 3
    await score(made)
    wire.peak = 1
    await score(made)
    first = wire.contents[0]
    assert first == {
        "ids": list(range(WANTED.total)),
        "first": WANTED.first,
        "k": 2,
        "cached": 16,
        "prefix": 16,
        "block": 16,
        "salt": first["salt"],
    }
    assert (len(first["salt"]), wire.contents[1]) == (32, first)
    assert [name for _, name in wire.asked] == ["v1", "v2", "v3"]
    assert (made.seconds, made.waited, made.peak) == (0.75, 1.5, 3)
    other = Verifier(cast(Sender, wire), choose(wire.scheduler, PLAN), b"another key")
    await score(other)
    assert wire.contents[-1]["salt"] != first["salt"]
    prompt = Grid.of(8, 20, 100, 16, prefix_caching=False)
    await made.score(prompt.deciding(20), list(range(28)), 2, prompt)
    assert (wire.contents[-1]["salt"], wire.contents[-1]["cached"]) == (None, None)


ERRORS: list[Callable[[], Exception]] = [
    lambda: UpstreamError("gone"),
    lambda: NotReady("gone"),
    lambda: QueueFull("gone", retry_after=3.0),
    lambda: DeterminismUnavailable("gone"),
]


@pytest.mark.parametrize("error", ERRORS)
async def test_another_one_of_the_posture_is_asked_for_the_same(error: Callable[[], Exception]) -> None:
    """Under the same id, once; and from then on it is asked first."""
    wire = Wire(scheduler(status(), status(digest="p-2"), status()), A=error())
    made = verifier(wire)
    await score(made)
    assert wire.asked == [("A", "v1"), ("C", "v1")]
    assert wire.contents[0] == wire.contents[1]
    await score(made)
    assert await made.text({"x": 1}, lambda said: said["text"]) == "x"
    assert wire.asked[2:] == [("C", "v2"), ("C", "t")]


@pytest.mark.parametrize("error", ERRORS)
async def test_without_another_one_the_reason_is_told(error: Callable[[], Exception]) -> None:
    """As it is: kind, words and when to come back."""
    made = error()
    wire = Wire(scheduler(status(), status(digest="p-2")), A=made)
    with pytest.raises(type(made)) as caught:
        await score(verifier(wire))
    assert caught.value is made
    assert wire.asked == [("A", "v1")]


async def test_nobody_is_asked_a_third_time() -> None:
    """Two that fail are enough; the last reason is told. Later the first one may be well again."""
    wire = Wire(scheduler(status(), status(), status()), A=UpstreamError("first"), B=NotReady("second"))
    made = verifier(wire)
    with pytest.raises(NotReady, match="second"):
        await score(made)
    assert wire.asked == [("A", "v1"), ("B", "v1")]
    wire.answers.clear()
    await score(made)
    assert wire.asked[2:] == [("A", "v2")]


async def test_what_the_caller_did_wrong_is_asked_nobody_else() -> None:
    """Another replica would say the same."""
    wire = Wire(scheduler(status(), status()), A=InvalidRequest("no template"))
    with pytest.raises(InvalidRequest, match="no template"):
        await verifier(wire).render(parse(CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'))
    assert wire.asked == [("A", "p")]


async def test_scores_that_make_no_sense_are_asked_elsewhere() -> None:
    """They say that something is wrong with that replica, and decide nothing."""
    wire = Wire(scheduler(status(), status()), A={"error": {"message": "late"}})
    assert await score(verifier(wire)) == WANTED.last - WANTED.first + 1
    assert wire.asked == [("A", "v1"), ("B", "v1")]


async def test_rows_of_another_posture_decide_nothing() -> None:
    """The guard's word on the answer itself counts, whatever the last probe said."""
    wire = Wire(scheduler(status()))
    wire.postures[A] = "p-2"
    with pytest.raises(NotReady, match="has another posture, p-2 and not p-1"):
        await score(verifier(wire))


async def test_an_answer_that_was_begun_on_a_posture_stays_there() -> None:
    """When the last replica of it shows another one, nothing else goes on."""
    wire = Wire(scheduler(status(), status(digest="p-2")), A=UpstreamError("gone"))
    made = verifier(wire)
    wire.scheduler.update(A, status(digest="p-3"))
    with pytest.raises(NotReady, match="has another posture"):
        await score(made)
    assert wire.asked == []


async def test_text_is_written_where_the_posture_is() -> None:
    """A replica that came back as another one may have another tokenizer."""
    wire = Wire(scheduler(status(), status()))
    made = verifier(wire)
    await score(made)
    wire.scheduler.update(A, status(digest="p-2"))
    await made.text({}, lambda said: said["text"])
    assert wire.asked == [("A", "v1"), ("B", "t")]
    wire.scheduler.update(B, status(digest="p-2"))
    with pytest.raises(NotReady, match="has another posture, p-2 and not p-1"):
        await made.text({}, lambda said: said["text"])
    assert len(wire.asked) == 2


async def test_later_passes_stay_where_the_chain_is() -> None:
    """At first anybody may be asked; then who computed the last pass, and not who was merely chosen for it."""
    wire = Wire(scheduler(status(), status()), A=UpstreamError("gone"))
    made = verifier(wire)
    await score(made)
    wire.answers.clear()
    made._failed = None
    await score(made)
    assert wire.preferred == [None, None, B]
    assert wire.asked == [("A", "v1"), ("B", "v1"), ("B", "v2")]


@pytest.mark.parametrize(
    ("path", "members"),
    [
        (TEXT, {"prompt": "Hi", "add_special_tokens": False, "cache_salt": "s"}),
        (TEXT, {"prompt": [4, 5], "echo": None}),
        (CHAT, {"messages": ["x"], "chat_template_kwargs": {"a": 1}, "reasoning_effort": "none", "whatever": [0.5]}),
    ],
)
async def test_what_is_rendered(path: str, members: dict[str, Any]) -> None:
    """The caller's members as they came, ids too, without what is ours, for the model as served."""
    wire = Wire(scheduler(status()))
    made = verifier(wire)
    asked = {"model": "m@verified", "determinism": {"window": 8}, "temperature": 0, **members}
    assert await made.render(parse(path, orjson.dumps(asked))) == [1, 2, 3]
    assert wire.contents == [{"path": path, "request": {"model": "m", "temperature": 0, **members}}]
    assert wire.asked == [("A", "p")]


@pytest.mark.parametrize("given", [{}, {"model": None}])
async def test_without_a_model_none_is_rendered_for(given: dict[str, Any]) -> None:
    """The engine's own then."""
    wire = Wire(scheduler(status()))
    made = Verifier(cast(Sender, wire), choose(wire.scheduler, replace(PLAN, model=None)), b"key")
    await made.render(parse(TEXT, orjson.dumps({"prompt": "Hi", **given})))
    assert wire.contents == [{"path": TEXT, "request": {"prompt": "Hi"}}]


@pytest.mark.parametrize("said", [None, {}, {"ids": None}, {"ids": ["1"]}, {"ids": [True]}, {"ids": [-1]}, {"ids": []}])
async def test_what_is_no_prompt_is_the_verifiers_fault(said: Any) -> None:
    """An id that is no token would be refused by every pass."""
    with pytest.raises(UpstreamError, match="did not render"):
        await verifier(Wire(scheduler(status()), A=said)).render(parse(TEXT, b'{"prompt": "Hi"}'))


@pytest.mark.parametrize(("path", "param"), [(TEXT, "prompt"), (CHAT, "messages")])
async def test_an_id_that_the_model_does_not_know_is_refused(path: str, param: str) -> None:
    """A tokenizer may have more of them than its model has rows."""
    most = TOLD["vocabulary"] - 1
    wire = Wire(scheduler(status()), A={"ids": [1, most]})
    body = b'{"prompt": "Hi", "messages": ["x"]}'
    assert await verifier(wire).render(parse(path, body)) == [1, most]
    wire.answers["A"] = {"ids": [most + 1, 1]}
    with pytest.raises(InvalidRequest, match=f"0 to {most}") as caught:
        await verifier(wire).render(parse(path, body))
    assert caught.value.param == param


async def test_chains_of_other_salts_are_others() -> None:
    """Whoever salts his caches apart shares no chain; without a salt it is the key's own."""
    wire = Wire(scheduler(status()))
    assert chain_key(b"key", None) == chain_key(b"key", 5) == b"key"
    for salt in ("one", "two", "one"):
        await score(Verifier(cast(Sender, wire), choose(wire.scheduler, PLAN), chain_key(b"key", salt)))
    await score(verifier(wire))
    one, two, again, none = (content["salt"] for content in wire.contents)
    assert one == again
    assert len({one, two, none}) == 3
