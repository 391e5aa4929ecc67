"""Which requests a round holds: each rung changes one thing, and keeps everything else."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

import pytest

from app.diagnose.attribution import Attribution, Stratum, attribute
from app.diagnose.material import LONG_NEIGHBOUR, NEIGHBOUR_LENGTH, PARAGRAPH, SHORT_NEIGHBOUR, Material
from app.diagnose.rungs import (
    CONTENTS,
    LEAST_LONGS,
    LEAST_ROUNDS,
    MOST_ROUNDS,
    NEIGHBOURS,
    Extent,
    Rung,
    Salts,
    Step,
    neighbour_tokens,
)
from app.diagnose.sample import Sample, Setting
from tests.unit.diagnose.samples import PROBES, material, plain, sample, shaken

SIZES = (2, 3, 4, 8)
EXTENT = Extent(SIZES, tuple(Rung), replicas=2)


def rounds(rung: Rung, count: int = MOST_ROUNDS, *, made: Material | None = None) -> list[tuple[Step, ...]]:
    """So many rounds of a rung, all of one run."""
    salts = Salts("run")
    return [EXTENT.round(rung, number, made or material(), salts) for number in range(count)]


def flat(rung: Rung, count: int = MOST_ROUNDS) -> list[Step]:
    """The steps of so many rounds."""
    return [step for steps in rounds(rung, count) for step in steps]


def batched(steps: Iterable[Step]) -> list[Step]:
    """Those that hold more than one prompt."""
    return [step for step in steps if step.setting.size > 1]


@pytest.mark.parametrize("rung", Rung)
def test_a_round_looks_at_the_prompts_that_it_names(rung: Rung) -> None:
    """The first prompts of each request are the ones at the named positions, and as many prompts run as is said."""
    steps = flat(rung)

    assert steps
    for step in steps:
        assert step.rung is rung
        assert step.prompts[: len(step.probes)] == tuple(material().prompt(position) for position in step.probes)
        assert step.setting.size == len(step.prompts) + len(step.neighbours)


@pytest.mark.parametrize(
    ("rung", "setting"),
    [
        (Rung.ALONE, Setting()),
        (Rung.SAMPLER, Setting(seeded=False)),
        (Rung.REPLICA, Setting(replica=1)),
        (Rung.REPLICA, Setting(replica=2)),
    ],
)
def test_every_round_asks_each_probe_once_alone(rung: Rung, setting: Setting) -> None:
    """Alone, cold, in the same order; another replica, or no seed, is all that changes."""
    for steps in rounds(rung):
        asked = [step.probes for step in steps if step.setting == setting]
        assert asked == [(position,) for position in range(PROBES)]
    assert {step.setting for step in flat(rung)} <= {setting, *(Setting(replica=each) for each in (1, 2))}


def test_a_round_of_batches_asks_alone_as_well() -> None:
    """Should the server change in the meantime, the answers given alone show it."""
    for steps in rounds(Rung.BATCH):
        assert [step.probes for step in steps if step.setting == Setting()] == [(each,) for each in range(PROBES)]


def test_every_round_asks_each_probe_in_each_size_and_content() -> None:
    """Once each: no prompt, size or content is asked more often than another."""
    for steps in rounds(Rung.BATCH):
        cells = [(probe, step.setting.size, step.setting.content) for step in batched(steps) for probe in step.probes]
        contents = {content for _, _, content in cells}
        assert len(contents) == CONTENTS
        assert sorted(cells) == sorted(itertools.product(range(PROBES), SIZES, contents))


def test_probed_prompts_keep_their_places_in_all_contents_of_a_size() -> None:
    """Which prompts stand where in a batch of a size is the same whatever its neighbours say, in every round."""
    places = defaultdict(set)
    for step in batched(flat(Rung.BATCH)):
        places[step.setting.size, step.probes[0]].add((step.probes, step.prompts[: len(step.probes)]))

    assert set(map(len, places.values())) == {1}


def test_contents_differ_in_what_neighbours_say_alone() -> None:
    """As many neighbours, all of one length, in every content of a size, and no two contents share a neighbour."""
    contents: dict[tuple[int, tuple[int, ...]], dict[int, set[tuple[object, ...]]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for step in batched(flat(Rung.BATCH)):
        others = step.prompts[len(step.probes) :]
        assert others
        assert {len(other) for other in others} == {NEIGHBOUR_LENGTH}
        contents[step.setting.size, step.probes][step.setting.content].add(others)

    for by_content in contents.values():
        assert {len(told) for told in by_content.values()} == {1}  # the same in every round
        said = [other for (others,) in by_content.values() for other in others]
        assert len(set(said)) == len(said)


def test_at_least_half_of_a_batch_is_neighbours() -> None:
    """So that another content is another batch."""
    for step in batched(flat(Rung.BATCH)):
        assert len(step.probes) <= max(1, step.setting.size // 2)


def test_contents_take_turns_to_be_first() -> None:
    """Another content begins each round, so that content does not go with time."""
    first = [batched(steps)[0].setting.content % CONTENTS for steps in rounds(Rung.BATCH, CONTENTS)]

    assert sorted(first) == list(range(CONTENTS))


def test_each_content_is_repeated_as_often_as_the_test_needs() -> None:
    """The least rounds ask every content that often, and further pairs of rounds bring others, as often."""
    turns: dict[int, int] = defaultdict(int)
    for step in batched(flat(Rung.BATCH)):
        if (step.setting.size, step.probes[0]) == (2, 0):
            turns[step.setting.content] += 1

    assert set(turns.values()) == {LEAST_ROUNDS[Rung.BATCH]}
    assert len(turns) == CONTENTS * MOST_ROUNDS // LEAST_ROUNDS[Rung.BATCH]


def test_without_exact_lengths_a_round_has_one_content() -> None:
    """Texts cannot be made equally long in tokens, so contents of one shape are not to be had."""
    words = Material.of(["one two", "three four"], PARAGRAPH.split(), ())

    for number in range(MOST_ROUNDS):
        steps = EXTENT.round(Rung.BATCH, number, words, Salts("run"))
        assert {step.setting.content for step in batched(steps)} == {0}
        assert all(isinstance(prompt, str) for step in steps for prompt in step.prompts)


def test_the_cache_holds_a_prompt_only_after_a_cold_answer_to_it() -> None:
    """Every cold answer is the first under its salt, and the warm one comes right behind it with the same."""
    for steps in rounds(Rung.CACHE):
        cold, warm = steps[::2], steps[1::2]
        assert [step.setting for step in cold] == [Setting()] * len(material().longs)
        for one, other in zip(cold, warm, strict=True):
            assert other.setting == Setting(warm=True)
            assert (one.salt, one.prompts) == (other.salt, other.prompts)


def test_no_other_salt_is_used_twice() -> None:
    """Over whole runs of all rungs: whatever is no warm answer finds its prompt in no cache."""
    salts = Salts("run")
    steps = [
        step
        for rung in Rung
        for number in range(MOST_ROUNDS)
        for step in EXTENT.round(rung, number, material(), salts)
        if not step.setting.warm
    ]

    assert len({step.salt for step in steps}) == len(steps)
    assert {step.salt for step in steps}.isdisjoint(Salts("other").fresh() for _ in steps)


def test_neighbours_with_long_kv_are_as_many_as_those_with_short() -> None:
    """A prompt joins three neighbours each time; all that differs is how much attention reads for them."""
    for steps in rounds(Rung.KV):
        assert [step.setting.kv for step in steps] == [SHORT_NEIGHBOUR, LONG_NEIGHBOUR] * 2
        for step in steps:
            assert [len(other) for other in step.neighbours] == [step.setting.kv] * NEIGHBOURS
            assert len(set(step.neighbours)) == NEIGHBOURS
        for short, long in itertools.pairwise(steps[:2]):
            assert short.prompts == long.prompts


def test_kv_neighbours_say_something_else_each_round() -> None:
    """What they say is no reason for the difference: it changes in each round, under short and long alike."""
    said = [step.neighbours for steps in rounds(Rung.KV) for step in steps if step.probes == (PROBES + 1,)]

    assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("longs", "asked"), [((129,), 0), ((129, 257), 1), ((129, 257, 641), 2), ((129, 257, 641, 1025), 2)]
)
def test_the_shortest_long_prompt_joins_nobody(longs: tuple[int, ...], asked: int) -> None:
    """Its KV is not split, so the rung needs a second one."""
    made = material(longs=longs)

    steps = EXTENT.round(Rung.KV, 0, made, Salts("run"))
    assert len({step.prompts for step in steps}) == asked
    assert made.longs[0] not in {prompt for step in steps for prompt in step.prompts}
    assert (asked > 0) == (len(longs) >= LEAST_LONGS)


def test_a_neighbour_outlasts_whoever_joins_it() -> None:
    """Its answer is longer than the one that joins, even after three others have begun before it."""
    for tokens in (1, 12, 48, 4096):
        assert neighbour_tokens(tokens) > 2 * tokens


CONDITIONS: dict[Rung, Callable[[Setting], Hashable]] = {
    Rung.BATCH: lambda setting: setting.content,
    Rung.CACHE: lambda setting: setting.warm,
    Rung.KV: lambda setting: setting.kv,
}


@pytest.mark.parametrize("rung", CONDITIONS)
def test_the_least_rounds_are_the_fewest_that_can_blame(rung: Rung) -> None:
    """Answers that their condition parts perfectly: blamed after the least rounds, and not after one round fewer."""
    condition = CONDITIONS[rung]

    def found(count: int) -> Attribution:
        cells: dict[Hashable, dict[Hashable, list[list[Sample]]]] = defaultdict(lambda: defaultdict(list))
        for step in flat(rung, count):
            for probe in step.probes if rung is not Rung.BATCH or step.setting.size > 1 else ():
                label, cell = condition(step.setting), (probe, step.setting.size)
                cells[cell][label].append([sample(shaken(plain(probe), (label, *cell)))])
        return attribute(Stratum.of(units) for units in cells.values())

    assert found(LEAST_ROUNDS[rung]).blamed
    assert not found(LEAST_ROUNDS[rung] - 1).blamed


def test_a_batch_costs_more_than_one_answer_and_less_than_as_many() -> None:
    """Neighbours share its steps; a bigger batch costs more, and so does a long prompt, and neighbours that begin."""
    by_size = {step.setting.size: step.weight for step in batched(flat(Rung.BATCH, 1))}

    assert [by_size[size] for size in SIZES] == sorted(set(by_size.values()))
    assert all(1.0 < by_size[size] < size for size in SIZES)
    assert {step.weight for step in flat(Rung.ALONE, 1)} == {1.0}
    assert all(step.weight > 1.0 for rung in (Rung.CACHE, Rung.KV) for step in flat(rung, 1))


def test_the_weight_is_that_of_the_least_rounds() -> None:
    """Requests alone count one each; a rung more weighs more, and so does another size."""
    alone = Extent(SIZES, (Rung.ALONE,))

    assert alone.weight(material()) == PROBES * LEAST_ROUNDS[Rung.ALONE]
    weights = [Extent(SIZES, tuple(Rung)[:count], 1).weight(material()) for count in range(len(Rung) + 1)]
    assert weights == sorted(set(weights))
    assert Extent((2,), (Rung.BATCH,)).weight(material()) < Extent((2, 8), (Rung.BATCH,)).weight(material())
