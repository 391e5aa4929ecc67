"""From made-up evidence to a finding per suspect. The requests are the ladder's own; the answers are written here."""

from collections.abc import Callable, Hashable
from random import Random

import pytest

from app.determinism.output import Choice
from app.diagnose.findings import LAYERS, Count, Finding, Layer, State, Suspect
from app.diagnose.ladder import Record
from app.diagnose.material import LONG_NEIGHBOUR
from app.diagnose.rungs import Rung
from app.diagnose.sample import Setting
from app.diagnose.verdict import Evidence, Verdict, judge
from tests.unit.diagnose.samples import (
    CLEAR,
    CLOSE,
    PROBES,
    WHOLE,
    Server,
    clean,
    climbed,
    evidence,
    parted,
    plain,
    shaken,
    silent,
    told,
)

Key = Callable[[Setting, int], Hashable | None]
"""What rounding belongs to; None where there is none."""

SHAPE: Key = lambda setting, _turn: setting.size if setting.size > 1 else None  # noqa: E731 - one line each, side by side
CACHE: Key = lambda setting, _turn: "warm" if setting.warm else None  # noqa: E731 - as above
KV: Key = lambda setting, _turn: "long" if setting.kv == LONG_NEIGHBOUR else None  # noqa: E731 - as above
RUN: Key = lambda setting, turn: (setting, turn)  # noqa: E731 - as above
REPLICA: Key = lambda setting, _turn: setting.replica or None  # noqa: E731 - as above
CONTENT: Key = lambda setting, _turn: setting[:2] if setting.size > 1 and not setting.kv else None  # noqa: E731 - as above

CONDITIONS = {
    Suspect.BATCH_SHAPE: SHAPE,
    Suspect.PREFIX_CACHE: CACHE,
    Suspect.KV_LENGTH: KV,
    Suspect.RUN_TO_RUN: RUN,
    Suspect.REPLICA: REPLICA,
    Suspect.NEIGHBOUR_CONTENT: CONTENT,
}
NO_CONDITION = {Suspect.TIES, Suspect.FAULT}


def rounding(key: Key, often: float = 0.5) -> Server:
    """Last bits that belong to the key; where tokens turn, the close choice does, for so many of the keys."""

    def server(prompt: int, setting: Setting, turn: int) -> Choice:
        of = key(setting, turn)
        if of is None:
            return plain(prompt)
        drawn = Random(repr((prompt, of)))  # noqa: S311 - noise of a test
        answer, other = shaken(plain(prompt), (of, prompt)), drawn.randint(1, 99)
        return parted(answer, other=other) if drawn.random() < often else answer

    return server


def experts(prompt: int, setting: Setting, turn: int) -> Choice:
    """Another expert for each content of a batch: large differences, and tokens of its own at clear choices."""
    of = CONTENT(setting, turn)
    if of is None:
        return plain(prompt)
    drawn = Random(repr((prompt, of)))  # noqa: S311 - noise of a test
    return parted(shaken(plain(prompt), (of, prompt), 40), drawn.randint(1, 9), drawn.randint(1, 99), margin=CLEAR)


def struck(when: Callable[[Setting, int], bool], base: Server = clean) -> Server:
    """A server that now and then takes a token that nothing explains: where the choice was clear on both sides."""

    def server(prompt: int, setting: Setting, turn: int) -> Choice:
        answer = base(prompt, setting, turn)
        return parted(answer, 2, 9) if when(setting, turn) else answer

    return server


def finding(verdict: Verdict, suspect: Suspect) -> Finding:
    """The finding on a suspect, which must be there."""
    found = verdict.of(suspect)
    assert found is not None
    return found


def on(suspect: Suspect, server: Server = clean, rungs: tuple[Rung, ...] = WHOLE, **changes: object) -> Finding:
    """The finding on a suspect from the least rounds of these rungs."""
    return finding(judge(evidence(server, rungs, **changes)), suspect)  # type: ignore[arg-type]  # test data


def acting(verdict: Verdict) -> set[Suspect]:
    """Who changes anything, ties left out: they follow from others."""
    return {each.suspect for each in verdict.findings if each.acts} - {Suspect.TIES}


def cut(rung: Rung, keep: int, server: Server = clean, *, reason: str | None = "the budget was spent") -> Evidence:
    """A run of which one rung ended after so many answers."""
    whole = evidence(server)
    record = whole.records[rung]
    return evidence(server, records={**whole.records, rung: Record(samples=record.samples[:keep], reason=reason)})


def test_a_server_that_repeats_is_suspected_of_nothing() -> None:
    """Every suspect was tested on answers, none was seen, and no token changed."""
    verdict = judge(evidence())

    assert {each.suspect: each.state for each in verdict.findings} == dict.fromkeys(
        set(Suspect) - {Suspect.CONFIGURATION, Suspect.SAMPLER}, State.NOT_SEEN
    )
    assert all(each.tokens.n and not each.bits.k for each in verdict.findings if each.suspect is not Suspect.TIES)
    assert all(each.delta == 0.0 for each in verdict.findings if each.suspect in CONDITIONS)
    assert (verdict.diverged, verdict.forks.forks, verdict.forks.noise) == (False, (), None)


@pytest.mark.parametrize("suspect", CONDITIONS)
def test_rounding_that_turns_a_tie_is_present_where_it_belongs(suspect: Suspect) -> None:
    """Each condition alone: it is present with its counts, it is the only one, and the forks are ties."""
    verdict = judge(evidence(rounding(CONDITIONS[suspect])))

    assert acting(verdict) == {suspect}
    found = finding(verdict, suspect)
    assert found.state is State.PRESENT
    assert 0 < found.tokens.k <= found.bits.k <= found.bits.n == found.tokens.n
    assert found.delta is not None
    assert 0.0 < found.delta <= 6 / 64
    assert verdict.diverged
    assert finding(verdict, Suspect.TIES).state is State.PRESENT


@pytest.mark.parametrize("suspect", CONDITIONS)
def test_rounding_that_turns_nothing_changes_logprobs_only(suspect: Suspect) -> None:
    """As above where no choice is close enough: logprobs only, no token changed, no tie broken."""
    verdict = judge(evidence(rounding(CONDITIONS[suspect], often=0.0)))

    assert acting(verdict) == {suspect}
    assert finding(verdict, suspect).state is State.LOGPROBS_ONLY
    assert finding(verdict, suspect).tokens.k == 0
    assert not verdict.diverged
    assert finding(verdict, Suspect.TIES).state is State.NOT_SEEN
    assert verdict.forks.noise is not None


@pytest.mark.parametrize("suspect", [*CONDITIONS, Suspect.SAMPLER])
def test_without_logprobs_tokens_alone_are_evidence(suspect: Suspect) -> None:
    """A server that tells no logprobs is judged by equality; ties and faults are then untested, with the reason."""
    key = CONDITIONS.get(suspect, lambda setting, turn: None if setting.seeded else turn)
    # What has one noise for several answers turns all of them, so that tokens alone tell it.
    noisy = rounding(key, 0.5 if suspect in {Suspect.RUN_TO_RUN, Suspect.SAMPLER} else 1.0)
    sampled = suspect is Suspect.SAMPLER
    rungs = (Rung.SAMPLER, *WHOLE) if sampled else WHOLE

    verdict = judge(evidence(lambda *asked: silent(noisy(*asked)), rungs, logprobs=False, sampled=sampled))

    assert acting(verdict) == {suspect}
    assert finding(verdict, suspect).delta is None
    assert {finding(verdict, each).state for each in NO_CONDITION} == {State.UNTESTED}
    if not sampled:
        assert {finding(verdict, each).reason for each in NO_CONDITION} == {
            "the answers hold no logprobs, so no margin is known"
        }


@pytest.mark.parametrize("other", [Suspect.BATCH_SHAPE, Suspect.PREFIX_CACHE, Suspect.KV_LENGTH, Suspect.REPLICA])
@pytest.mark.parametrize("seed", range(3))
def test_noise_from_run_to_run_blames_no_condition(other: Suspect, seed: int) -> None:
    """Everything differs in every comparison, and only the repeats are to blame for that."""
    verdict = judge(evidence(rounding(lambda setting, turn: (seed, setting, turn))))

    assert acting(verdict) == {Suspect.RUN_TO_RUN}
    assert finding(verdict, other).bits.k > 0
    assert finding(verdict, other).state in {State.NOT_SEEN, State.UNDECIDED}
    assert "they differ, but" in finding(verdict, other).reason


def test_arrival_jitter_does_not_blame_contents() -> None:
    """Now and then a batch is smaller, whatever its neighbours say: contents differ as much within as between."""

    def late(setting: Setting, turn: int) -> Hashable | None:
        return setting.size - ((setting.content + turn) % 3 == 0) if setting.size > 1 else None

    verdict = judge(evidence(rounding(late)))

    assert acting(verdict) == {Suspect.BATCH_SHAPE}
    assert finding(verdict, Suspect.NEIGHBOUR_CONTENT).bits.k > 0


@pytest.mark.parametrize(("late", "state"), [({0}, State.NOT_SEEN), ({0, 1}, State.UNDECIDED)])
def test_contents_that_all_brought_one_answer_are_not_in_doubt(late: set[int], state: State) -> None:
    """One prompt differs in one content: not each time, so it was no content; each time, and nobody can tell so far."""

    def server(prompt: int, setting: Setting, turn: int) -> Choice:
        struck = prompt == 0 and setting == Setting(size=4, content=1) and turn in late
        return shaken(plain(prompt), "late") if struck else plain(prompt)

    content = finding(judge(evidence(server)), Suspect.NEIGHBOUR_CONTENT)

    assert content.bits.k == len(late)
    assert content.state is state
    assert ("each content brought the answer of the others too" in content.reason) is (state is State.NOT_SEEN)


def test_contents_that_act_do_not_make_the_shape_guilty() -> None:
    """Every batch differs from the answer given alone, by its contents alone: the shape is not blamed for that."""
    verdict = judge(evidence(experts))

    assert finding(verdict, Suspect.NEIGHBOUR_CONTENT).state is State.PRESENT
    shape = finding(verdict, Suspect.BATCH_SHAPE)
    assert shape.bits.k == shape.bits.n
    assert not shape.acts
    assert "they differ" in shape.reason


def test_contents_and_shape_can_both_be_present() -> None:
    """Rounding of the size beside contents that take effect late in an answer: both are blamed."""
    sized = rounding(SHAPE, often=0.0)

    def both(prompt: int, setting: Setting, turn: int) -> Choice:
        answer = sized(prompt, setting, turn)
        of = CONTENT(setting, turn)
        drawn = Random(repr((prompt, of)))  # noqa: S311 - noise of a test
        return answer if of is None else parted(answer, drawn.randint(9, 11), drawn.randint(1, 99), margin=CLEAR)

    assert acting(judge(evidence(both))) == {Suspect.NEIGHBOUR_CONTENT, Suspect.BATCH_SHAPE}


def test_contents_hide_a_single_shape() -> None:
    """With one size there is no other to compare, so what the shape does beside the contents is undecided."""
    verdict = judge(evidence(experts, sizes=(8,)))

    assert finding(verdict, Suspect.NEIGHBOUR_CONTENT).state is State.PRESENT
    assert finding(verdict, Suspect.BATCH_SHAPE).state is State.UNDECIDED


def test_contents_need_lengths_that_are_known() -> None:
    """Without token ids neighbours differ in length too, so contents are untested; the shape is still tested."""
    verdict = judge(evidence(rounding(SHAPE), exact=False))

    assert finding(verdict, Suspect.NEIGHBOUR_CONTENT).state is State.UNTESTED
    assert "no token ids" in finding(verdict, Suspect.NEIGHBOUR_CONTENT).reason
    assert finding(verdict, Suspect.BATCH_SHAPE).state is State.PRESENT


def test_one_content_alone_is_no_evidence_on_contents() -> None:
    """A batch rung that ended before its second content: untested, with the reason; the shape has its evidence."""
    first = [each for each in climbed(clean, [Rung.BATCH])[Rung.BATCH].samples if each.setting.content == 0]

    verdict = judge(cut(Rung.BATCH, len(first[: PROBES + 8])))

    content = finding(verdict, Suspect.NEIGHBOUR_CONTENT)
    assert (content.state, content.reason, content.tokens) == (State.UNTESTED, "the budget was spent", Count(0, 0))
    assert finding(verdict, Suspect.BATCH_SHAPE).tokens.n > 0


@pytest.mark.parametrize("where", [Setting(), Setting(size=4, content=1), Setting(warm=True), Setting(replica=1)])
def test_a_clear_fork_is_a_fault_and_no_layers(where: Setting) -> None:
    """One answer in a few parts from its own repeats at a clear choice: the fault's, and counted nowhere else."""
    verdict = judge(evidence(struck(lambda setting, turn: setting == where and turn == 1)))

    assert acting(verdict) == {Suspect.FAULT}
    fault = finding(verdict, Suspect.FAULT)
    assert (fault.state, fault.layer) == (State.PRESENT, Layer.NONE)
    assert 0 < fault.tokens.k < fault.tokens.n
    assert all(each.bits.k == 0 for each in verdict.findings if each.suspect in CONDITIONS)
    assert verdict.diverged


def test_a_fault_beside_neighbours_is_a_fault() -> None:
    """Beside others' KV too: repeats there ask other contents, which is no reason for a clear fork."""
    verdict = judge(evidence(struck(lambda setting, _turn: setting.kv > 0 and setting.content == 2)))

    assert acting(verdict) == {Suspect.FAULT}


def test_a_fault_and_a_layer_are_told_apart() -> None:
    """Rounding of the shape, and now and then a clear fork: both are named, each with its own answers."""
    struck_now_and_then = struck(lambda setting, turn: setting == Setting() and turn == 2, rounding(SHAPE))

    verdict = judge(evidence(struck_now_and_then))
    assert acting(verdict) == {Suspect.FAULT, Suspect.BATCH_SHAPE}
    assert finding(verdict, Suspect.RUN_TO_RUN).bits.k == 0


def test_clear_forks_of_contents_are_no_fault() -> None:
    """Where contents of a batch matter, they take clear tokens too, and no repeat contradicts them."""
    verdict = judge(evidence(experts))

    assert finding(verdict, Suspect.FAULT).state is State.NOT_SEEN
    assert finding(verdict, Suspect.FAULT).tokens.n > 0


def test_a_fault_is_found_where_contents_matter() -> None:
    """Among the answers given alone, which no neighbour touches."""
    verdict = judge(evidence(struck(lambda setting, turn: setting == Setting() and turn == 1, experts)))

    assert acting(verdict) == {Suspect.FAULT, Suspect.NEIGHBOUR_CONTENT}


def test_forks_of_unknown_margin_accuse_and_acquit_nobody() -> None:
    """Logprobs without a second likeliest token: that repeats fork is said, whether at a tie cannot be."""

    def blind(prompt: int, setting: Setting, turn: int) -> Choice:
        answer = rounding(RUN)(prompt, setting, turn)
        margins = [float("nan") if place == CLOSE else each for place, each in enumerate(answer.margins or ())]
        return told(answer.token_ids, logprobs=answer.logprobs, margins=margins)

    verdict = judge(evidence(blind))
    assert finding(verdict, Suspect.RUN_TO_RUN).state is State.PRESENT
    assert {finding(verdict, each).state for each in NO_CONDITION} == {State.UNDECIDED}


def test_a_few_differences_are_undecided() -> None:
    """Answers differ beside long neighbours, and one round is too few to tell that from chance."""
    whole = climbed(rounding(KV), [Rung.KV], rounds={Rung.KV: 1})
    kv = finding(judge(evidence(records={**evidence().records, **whole})), Suspect.KV_LENGTH)

    assert kv.state is State.UNDECIDED
    assert kv.bits.k > 0
    assert "too few were compared" in kv.reason


def test_tokens_that_changed_are_a_divergence_though_nobody_is_blamed() -> None:
    """What is undecided changed all the same: nobody may say that tokens did not."""
    turning = climbed(
        lambda prompt, setting, _turn: parted(plain(prompt)) if setting.kv > 16 else plain(prompt),
        [Rung.KV],
        rounds={Rung.KV: 1},
    )
    verdict = judge(evidence(records={**evidence().records, **turning}))

    assert not any(each.state is State.PRESENT for each in verdict.findings if each.suspect in CONDITIONS)
    assert finding(verdict, Suspect.KV_LENGTH).tokens.k > 0
    assert verdict.diverged


GAPS = {
    Suspect.NEIGHBOUR_CONTENT: Rung.BATCH,
    Suspect.BATCH_SHAPE: Rung.BATCH,
    Suspect.PREFIX_CACHE: Rung.CACHE,
    Suspect.KV_LENGTH: Rung.KV,
    Suspect.REPLICA: Rung.REPLICA,
    Suspect.SAMPLER: Rung.SAMPLER,
}


@pytest.mark.parametrize(("suspect", "rung"), GAPS.items())
@pytest.mark.parametrize(
    ("record", "missing", "reason"),
    [
        (None, "the budget is too short for it", "the budget is too short for it"),
        (None, None, "it was not tried"),
        (Record(reason="HTTP 429: slow down"), None, "HTTP 429: slow down"),
        (Record(troubles=["first", "last"]), None, "last"),
        (Record(), None, "it brought no answers to compare"),
    ],
    ids=["left out", "never mentioned", "given up", "without answers", "empty"],
)
def test_what_was_not_tried_is_untested_with_its_reason(
    suspect: Suspect, rung: Rung, record: Record | None, missing: str | None, reason: str
) -> None:
    """Never a verdict without evidence: no counts, no p, and the reason that is known."""
    brought = climbed(clean, [each for each in (Rung.SAMPLER, *WHOLE) if each is not rung])
    if record is not None:
        brought[rung] = record

    found = on(suspect, rungs=(), records=brought, missing={} if missing is None else {rung: missing}, sampled=True)

    assert (found.state, found.reason) == (State.UNTESTED, reason)
    assert (found.tokens, found.bits, found.delta, found.attribution) == (Count(0, 0), Count(0, 0), None, None)


def test_nothing_at_all_tests_nothing() -> None:
    """A ladder that brought nothing: every suspect is untested."""
    verdict = judge(evidence(rungs=()))

    assert {each.state for each in verdict.findings} == {State.UNTESTED}
    assert not verdict.diverged


def test_one_answer_alone_is_no_repeat() -> None:
    """The first answers of all show nothing of repeats."""
    brought = climbed(clean, [Rung.ALONE], rounds={Rung.ALONE: 1})

    assert on(Suspect.RUN_TO_RUN, rungs=(), records=brought).state is State.UNTESTED
    assert on(Suspect.FAULT, rungs=(), records=brought).state is State.UNTESTED


def test_a_cache_that_served_nothing_is_untested() -> None:
    """The server tells that no prompt token came from a cache, so equal answers are no evidence."""
    found = on(Suspect.PREFIX_CACHE, cached=lambda _setting, _turn: 0)

    assert found.state is State.UNTESTED
    assert found.reason.startswith("nothing came from a prefix cache")


def test_a_cache_that_ignores_salts_is_untested() -> None:
    """A cold prompt came from the cache: there is no answer without it to compare with."""
    found = on(Suspect.PREFIX_CACHE, rounding(CACHE), cached=lambda _setting, _turn: 128)

    assert found.state is State.UNTESTED
    assert "does not honour it" in found.reason


def test_a_cache_that_is_not_told_of_may_be_seen_but_not_acquitted() -> None:
    """Where the server does not say what was cached: a difference is one, equal answers leave it undecided."""

    def unknown(_setting: Setting, _turn: int) -> None:
        return None

    assert on(Suspect.PREFIX_CACHE, rounding(CACHE), cached=unknown).state is State.PRESENT
    equal = on(Suspect.PREFIX_CACHE, cached=unknown)
    assert equal.state is State.UNDECIDED
    assert "--enable-prompt-tokens-details" in equal.reason


def test_a_warm_answer_that_missed_the_cache_is_no_evidence() -> None:
    """Evicted before it was asked again: that answer was computed anew, and is compared with nothing."""
    found = on(Suspect.PREFIX_CACHE, cached=lambda setting, turn: 128 if setting.warm and turn else 0)

    whole = on(Suspect.PREFIX_CACHE)
    assert (found.state, whole.state) == (State.NOT_SEEN, State.NOT_SEEN)
    assert found.tokens.n == whole.tokens.n - len({each.prompt for each in evidence().of(Rung.CACHE)})


def test_a_cache_rung_that_ended_before_its_first_warm_answer_says_so() -> None:
    """It is not the cache that was off."""
    found = finding(judge(cut(Rung.CACHE, 1)), Suspect.PREFIX_CACHE)

    assert (found.state, found.reason) == (State.UNTESTED, "the budget was spent")


def test_no_other_replica_is_untested() -> None:
    """One server was named, and the option that names another is told."""
    found = on(Suspect.REPLICA, rungs=WHOLE[:-1], replicas=0)

    assert found.state is State.UNTESTED
    assert "--replica" in found.reason


def postures(*names: str | None) -> dict[int, frozenset[str]]:
    """The posture that each replica told."""
    return {replica: frozenset({name}) for replica, name in enumerate(names) if name is not None}


@pytest.mark.parametrize(
    ("told_postures", "suspect", "layer", "said"),
    [
        (postures("a", "a"), Suspect.REPLICA, Layer.FRAMEWORK, "the same posture"),
        (postures("a", "b"), Suspect.CONFIGURATION, Layer.NONE, "another posture"),
        (postures("a", None), Suspect.REPLICA, Layer.FRAMEWORK, "a posture that it does not tell"),
        (postures(None, "b"), Suspect.REPLICA, Layer.FRAMEWORK, "a posture that it does not tell"),
        (postures(), Suspect.REPLICA, Layer.FRAMEWORK, "a posture that it does not tell"),
    ],
)
def test_another_replica_is_hardware_or_configuration_by_its_posture(
    told_postures: dict[int, frozenset[str]], suspect: Suspect, layer: Layer, said: str
) -> None:
    """The same posture, or one that is not told, is the framework's; another one is a configuration's, no layer's."""
    verdict = judge(evidence(rounding(REPLICA), postures=told_postures))

    assert acting(verdict) == {suspect}
    found = finding(verdict, suspect)
    assert (found.state, found.layer) == (State.PRESENT, layer)
    assert found.reason.endswith(f"with {said}")
    other = {Suspect.REPLICA: Suspect.CONFIGURATION, Suspect.CONFIGURATION: Suspect.REPLICA}[suspect]
    assert verdict.of(other) is None


def test_replicas_of_several_postures_are_judged_apart() -> None:
    """Of two further replicas one has the first's posture: each finding holds the answers of its own replica."""
    told_postures = postures("a", "a", "b")

    verdict = judge(
        evidence(rounding(lambda setting, _turn: setting.replica == 2 or None), postures=told_postures, replicas=2)
    )
    assert finding(verdict, Suspect.REPLICA).state is State.NOT_SEEN
    assert finding(verdict, Suspect.CONFIGURATION).state is State.PRESENT

    verdict = judge(
        evidence(rounding(lambda setting, _turn: setting.replica == 1 or None), postures=told_postures, replicas=2)
    )
    assert finding(verdict, Suspect.REPLICA).state is State.PRESENT
    assert finding(verdict, Suspect.CONFIGURATION).state is State.NOT_SEEN


def test_a_sampler_is_a_suspect_only_where_something_is_sampled() -> None:
    """At temperature 0 there is none; with a temperature its repeats without a seed are what is compared."""
    assert judge(evidence()).of(Suspect.SAMPLER) is None
    rungs = (Rung.SAMPLER, *WHOLE)

    assert on(Suspect.SAMPLER, rungs=rungs, sampled=True).state is State.NOT_SEEN
    drawn = rounding(lambda setting, turn: None if setting.seeded else turn)
    verdict = judge(evidence(drawn, rungs, sampled=True))
    assert acting(verdict) == {Suspect.SAMPLER}
    assert finding(verdict, Suspect.SAMPLER).layer is Layer.NONE


def test_where_something_is_sampled_margins_say_nothing() -> None:
    """A sampled token need not be the likeliest: no tie and no fault is claimed, and no answer left out as faulty."""
    sampled = struck(lambda setting, turn: setting == Setting(size=4, content=1) and turn == 1)
    verdict = judge(evidence(sampled, (Rung.SAMPLER, *WHOLE), sampled=True))

    assert {finding(verdict, each).state for each in NO_CONDITION} == {State.UNTESTED}
    assert all("sampled token" in finding(verdict, each).reason for each in NO_CONDITION)
    whole = judge(evidence(clean, (Rung.SAMPLER, *WHOLE), sampled=True))
    for suspect in (Suspect.NEIGHBOUR_CONTENT, Suspect.BATCH_SHAPE):
        assert finding(verdict, suspect).tokens.n == finding(whole, suspect).tokens.n
        assert finding(verdict, suspect).tokens.k > 0


def test_ties_are_present_where_rounding_turned_them() -> None:
    """Every fork is at the one close token of the answers, and the finding tells how many tokens were as close."""
    verdict = judge(evidence(rounding(SHAPE)))

    ties = finding(verdict, Suspect.TIES)
    assert (ties.state, ties.layer) == (State.PRESENT, Layer.TIES)
    assert ties.tokens.k == ties.tokens.n == len(verdict.forks.forks) > 0
    assert f"{verdict.forks.exposed} of {verdict.forks.tokens} tokens" in ties.reason
    assert {fork.token for fork in verdict.forks.forks} == {CLOSE}


def test_forks_at_clear_choices_are_no_ties() -> None:
    """Another expert's tokens: forks are judged, and ties are not seen."""
    ties = on(Suspect.TIES, experts)

    assert ties.state is State.NOT_SEEN
    assert ties.tokens.n > 0


def test_a_tie_among_many_clear_forks_is_chance() -> None:
    """Where contents act, an answer parts at a close token now and then: chance does as much, so no tie is blamed."""

    def anywhere(prompt: int, setting: Setting, turn: int) -> Choice:
        of = CONTENT(setting, turn)
        if of is None:
            return plain(prompt)
        drawn = Random(repr((prompt, of)))  # noqa: S311 - noise of a test
        at = CLOSE if (of, prompt) == ((4, 1), 0) else drawn.randint(8, 10)
        return parted(shaken(plain(prompt), of), at, drawn.randint(1, 99))

    verdict = judge(evidence(anywhere))

    assert finding(verdict, Suspect.NEIGHBOUR_CONTENT).acts
    ties = finding(verdict, Suspect.TIES)
    assert 0 < ties.tokens.k < ties.tokens.n
    assert ties.state is State.NOT_SEEN


def test_findings_come_in_the_order_of_the_layers() -> None:
    """L1 to L4, then what is none of them; one finding per suspect."""
    verdict = judge(evidence(clean, (Rung.SAMPLER, *WHOLE), sampled=True))

    layers = [each.layer for each in verdict.findings]
    assert layers == sorted(layers, key=list(Layer).index)
    assert len({each.suspect for each in verdict.findings}) == len(verdict.findings)
    assert set(LAYERS) == set(Suspect)


def test_a_blamed_condition_is_settled_and_an_unblamed_difference_is_open() -> None:
    """More repeats are worth while only where answers differ and nobody is blamed for it."""
    blamed, equal = on(Suspect.BATCH_SHAPE, rounding(SHAPE)), on(Suspect.BATCH_SHAPE)
    differing, repeats = on(Suspect.BATCH_SHAPE, rounding(RUN)), on(Suspect.RUN_TO_RUN, rounding(RUN))

    assert [each.open for each in (blamed, equal, differing, repeats)] == [False, False, True, False]


@pytest.mark.parametrize(("names", "forked"), [(("a", "a"), True), (("a", None), True), (("a", "b"), False)])
def test_a_replica_tells_of_ties_unless_its_posture_is_another(names: tuple[str | None, ...], forked: bool) -> None:
    """Hardware that rounds in another way turns ties; another configuration answers otherwise for its own reasons."""
    verdict = judge(evidence(rounding(REPLICA), postures=postures(*names)))

    assert (len(verdict.forks.forks) > 0) == forked
    assert (finding(verdict, Suspect.TIES).state is State.PRESENT) == forked
    assert ("no answers of one posture forked" in finding(verdict, Suspect.TIES).reason) == (not forked)
