"""The law of verified decoding: an answer is a function of prompt, grid and verifier, and no draft can change it.

The engine here is scripted: what a row holds is a pseudo-random function of the pass's shape and of the tokens before
the row's position, with many exact ties. The reference decoder goes token by token, straight from the definition, and
shares no code with what it checks but the types that both speak.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from random import Random
from typing import Any, cast, overload

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from app.determinism.output import TEXT_PATH
from app.determinism.request import InferenceRequest
from app.errors import UnusableRow
from app.verification.decoding import Counts, Decoding, Undecided
from app.verification.ending import Ending
from app.verification.grid import Grid, GridKind, Pass
from app.verification.request import read_wanted
from app.verification.rows import Row
from app.verifier.drafts import Drafter as Drafting
from app.verifier.passes import Verifier
from app.verifier.session import Session
from app.verifier.text import Piece
from tests.unit.verification.test_request import MODEL

VOCABULARY = 40
MOST = 20
"""Logprobs that the scripted engine shows at most."""

Shape = tuple[int, int | None, int]


@dataclass
class Engine:
    """Rows by chance, but by the same chance each time. The fewer ``levels``, the more tokens are exactly equal."""

    seed: int
    levels: int
    shown: dict[tuple[Shape, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)

    def whole_row(self, shape: Shape, before: tuple[int, ...]) -> tuple[float, ...]:
        """The logprob of every id after these tokens, in a pass of this shape."""
        known = self.shown.get((shape, before))
        if known is None:
            text = repr((self.seed, shape, before)).encode()
            digest = blake2b(text, digest_size=VOCABULARY).digest()
            known = self.shown[shape, before] = tuple(-0.125 - byte * self.levels // 256 / 8 for byte in digest)
        return known

    def row(self, shape: Shape, before: tuple[int, ...], k: int) -> Row:
        """The best ``k`` of a row. Which equals come first, and which are shown at the end, depends on k."""
        logprobs = self.whole_row(shape, before)
        order = list(range(VOCABULARY))
        Random(repr((self.seed, before, k))).shuffle(order)  # noqa: S311 - a script, no secret
        best = sorted(order, key=lambda token: -logprobs[token])[:k]
        return Row(tuple(best), tuple(logprobs[token] for token in best))


@dataclass(frozen=True)
class Rows(Sequence[Row]):
    """The rows of a pass from a position to the end, each computed when it is looked at."""

    engine: Engine
    shape: Shape
    candidate: tuple[int, ...]
    first: int
    k: int

    def __len__(self) -> int:
        return len(self.candidate) - self.first + 1

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if index >= len(self):
            raise IndexError(index)
        return self.engine.row(self.shape, self.candidate[: self.first + index], self.k)


@dataclass(frozen=True)
class Case:
    """One request to one verifier."""

    kind: GridKind
    window: int
    block: int
    prompt: tuple[int, ...]
    length: int
    max_tokens: int
    min_tokens: int
    eos: int | None
    model_stops: frozenset[int]
    stops: frozenset[int]
    ignore_eos: bool
    top: int | None
    seed: int
    levels: int

    def grid(self) -> Grid:
        """The grid under test."""
        return Grid.of(
            self.window, len(self.prompt), self.length, self.block, prefix_caching=self.kind is GridKind.CHAIN
        )

    def ending(self) -> Ending:
        """The end rules under test."""
        return Ending(
            prompt=len(self.prompt),
            length=self.length,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            eos=self.eos,
            model_stops=self.model_stops,
            stops=self.stops,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True)
class Answer:
    """What must not depend on a draft."""

    tokens: tuple[int, ...]
    rows: tuple[tuple[tuple[int, float], ...], ...]
    finish_reason: str
    stop_reason: int | str | None


def shape_of(case: Case, position: int) -> Shape:
    """By the definition: how many tokens the deciding pass holds, reads from the cache, and has computed before."""
    if case.kind is GridKind.PROMPT:
        end = len(case.prompt)
        while end <= position:
            end += case.window
        return min(end, case.length - 1), None, 0
    end = 0
    while end < position:
        end += case.window
    total = min(end, case.length - 1)
    return total, (total - 1) // case.block * case.block, (len(case.prompt) - 1) // case.block * case.block


def reference(case: Case, engine: Engine) -> Answer:
    """The answer token by token."""
    known = case.prompt
    rows: list[tuple[tuple[int, float], ...]] = []
    ends = set(case.model_stops) | ({case.eos} - {None})
    while True:
        shape = shape_of(case, len(known))
        logprobs = engine.whole_row(shape, known)
        count = len(known) - len(case.prompt)
        allowed = [n for n in range(VOCABULARY) if count >= case.min_tokens or n not in ends | case.stops]
        best = max(logprobs[token] for token in allowed)
        token = next(token for token in allowed if logprobs[token] == best)
        told = engine.row(shape, known, MOST)
        ranked = sorted(zip(told.ids, told.logprobs, strict=True), key=lambda entry: (-entry[1], entry[0]))
        ranked = ranked[: case.top or 0]
        rows.append(tuple(ranked if token in dict(ranked) else [*ranked, (token, logprobs[token])]))
        known = (*known, token)
        reason: tuple[str, int | None] | None = None
        if token in ends and not case.ignore_eos:
            reason = "stop", None if token == case.eos else token
        elif token in case.stops:
            reason = "stop", token
        elif count + 1 == case.max_tokens or len(known) == case.length:
            reason = "length", None
        if reason is not None:
            return Answer(known[len(case.prompt) :], tuple(rows), *reason)


Drafter = Callable[[int, Sequence[int]], list[int]]
"""From how many tokens are wanted, and all tokens so far, to a draft."""


def erratic(case: Case, truth: Answer, seed: int) -> Drafter:
    """A drafter that is right for a while, forks, lies, ends early, says nothing, or says too much."""
    random = Random(seed)  # noqa: S311 - a script, no secret
    right = random.choice([0.0, 0.5, 0.9, 0.98, 1.0])

    def draft(wanted: int, known: Sequence[int]) -> list[int]:
        ahead = truth.tokens[len(known) - len(case.prompt) :]
        size = random.choice([wanted, wanted, wanted, 0, wanted // 2, wanted + 7, 300])
        ids = [
            ahead[n] if n < len(ahead) and random.random() < right else random.randrange(VOCABULARY)
            for n in range(size)
        ]
        if ids and random.random() < 0.2:
            ids[random.randrange(len(ids))] = random.choice([-1, VOCABULARY, 2**31, 2**70, -(2**40)])
        if ids and random.random() < 0.1:
            ids[random.randrange(len(ids))] = next(iter(case.stops | {case.eos or 0}))
        return ids

    return draft


class Tally:
    """Counts as they must be, kept apart: what each draft was good for."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._pending: list[int] = []
        self.counts = Counts()
        self.disagreements = 0

    def _ends(self, token: int, count: int) -> bool:
        case = self._case
        stops = case.stops | (frozenset() if case.ignore_eos else case.model_stops | {case.eos})
        return token in stops or count >= min(case.max_tokens, case.length - len(case.prompt))

    def drafted(self, ids: Sequence[int], decided: int) -> None:
        """A draft came, when so many tokens were decided."""
        for token in ids:
            done = self._pending and self._ends(self._pending[-1], decided + len(self._pending))
            if done or token not in range(VOCABULARY):
                break
            self._pending.append(token)
            self.counts.drafted += 1

    def passed(self, wanted: Pass, candidate: Sequence[int], decided: Sequence[int]) -> None:
        """A pass came back and decided these tokens."""
        self.counts.passes += 1
        if not decided:
            self.counts.repeats += 1
            return
        last = wanted.first + len(decided) - 1
        self.disagreements += last < wanted.last and candidate[last] != decided[-1]
        while decided and self._pending and self._pending[0] == decided[0]:
            self._pending, decided = self._pending[1:], decided[1:]
            self.counts.accepted += 1
        if decided and self._pending:
            self._pending = []
            self.counts.rollbacks += 1


def decode(case: Case, engine: Engine, drafter: Drafter, decoding: Decoding) -> Tally:
    """Drive an answer to its end, looking at every pass on the way."""
    tally = Tally(case)
    written = {case.prompt[: (len(case.prompt) - 1) // case.block * case.block]}
    while decoding.end is None:
        known = (*case.prompt, *decoding.tokens)
        if wish := decoding.draft_wanted():
            ids = drafter(wish, (*case.prompt, *decoding.known()))
            decoding.drafted(ids)
            tally.drafted(ids, len(decoding.tokens))
        wanted, candidate, k = decoding.wanted(), decoding.candidate(), decoding.logprobs_wanted()
        shape = (wanted.total, wanted.cached, wanted.prefix)
        assert len(candidate) == wanted.total < case.length
        assert all(0 <= token < VOCABULARY for token in candidate)
        assert wanted.first == len(known) <= wanted.last <= wanted.total
        assert tuple(candidate[: wanted.first]) == known
        assert 2 <= k <= MOST
        if wanted.cached is not None:
            assert wanted.cached < wanted.first
            assert 0 < wanted.total - wanted.cached <= case.block
            assert known[: wanted.cached] in written, "the blocks that a pass reads were written by one before it"
            if (wanted.total - wanted.cached) == case.block:
                written.add(tuple(candidate))
        before = list(decoding.tokens)
        outcome = decoding.take(Rows(engine, shape, tuple(candidate), wanted.first, k))
        decided = decoding.tokens[len(before) :]
        assert decoding.tokens[: len(before)] == before, "what was decided is final"
        if isinstance(outcome, Undecided):
            assert not decided
            assert outcome.logprobs == k < decoding.logprobs_wanted()
            assert decoding.wanted() == wanted
            assert decoding.candidate() == candidate
        else:
            assert outcome == len(decided) >= 1
        tally.passed(wanted, candidate, decided)
    return tally


def answer_of(decoding: Decoding) -> Answer:
    assert decoding.end is not None
    return Answer(
        tuple(decoding.tokens),
        tuple(tuple(zip(row.ids, row.logprobs, strict=True)) for row in decoding.rows),
        decoding.end.finish_reason,
        decoding.end.stop_reason,
    )


def decoding_of(case: Case, make: type[Decoding] = Decoding, grid: Grid | None = None) -> Decoding:
    return make(
        case.prompt,
        grid or case.grid(),
        case.ending(),
        VOCABULARY,
        filler=3,
        most_logprobs=MOST,
        first_logprobs=2,
        top=case.top,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Requests of every kind; the model's length is often close, and end tokens are often reached."""
    window = draw(st.integers(1, 64))
    size = draw(st.integers(1, 200))
    room = draw(st.integers(1, 90))
    most = draw(st.sampled_from([min(room, 5), room, 400]))
    token = st.integers(0, VOCABULARY - 1)
    eos = draw(st.none() | token)
    return Case(
        kind=draw(st.sampled_from(GridKind)),
        window=window,
        block=window * draw(st.integers(1, 4)),
        prompt=tuple(draw(st.integers(0, VOCABULARY - 1)) if n < 3 else n * 7 % VOCABULARY for n in range(size)),
        length=size + room,
        max_tokens=most,
        min_tokens=draw(st.sampled_from([0, 0, min(most, 3), min(most, 50)])),
        eos=eos,
        model_stops=frozenset(draw(st.sets(token, max_size=1))) - {eos},
        stops=frozenset(draw(st.sets(token, max_size=2))),
        ignore_eos=draw(st.booleans()),
        top=draw(st.sampled_from([None, None, 0, 1, 5, MOST])),
        seed=draw(st.integers(0, 2**32)),
        levels=draw(st.sampled_from([12, 60, 256])),
    )


@settings(max_examples=400, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_drafts_never_influence_the_answer(case: Case, seed: int) -> None:
    """Tokens, logprobs, finish and stop reason are the reference decoder's, whatever was drafted."""
    engine = Engine(case.seed, case.levels)
    truth = reference(case, engine)
    decoding = decoding_of(case)
    tally = decode(case, engine, erratic(case, truth, seed), decoding)
    assert answer_of(decoding) == truth
    assert decoding.counts == tally.counts
    windows = {shape_of(case, len(case.prompt) + n) for n in range(len(truth.tokens))}
    spare = case.kind is GridKind.PROMPT  # where a window ends at L-1, the token at L-1 has a pass of the same shape
    assert tally.counts.passes - tally.counts.repeats <= len(windows) + spare + tally.disagreements


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_a_perfect_drafter_costs_one_pass_a_window(case: Case) -> None:
    """Nothing is rolled back, every draft token is accepted, and no window is tried twice but for more logprobs."""
    engine = Engine(case.seed, case.levels)
    truth = reference(case, engine)
    decoding = decoding_of(case)

    def perfect(wanted: int, known: Sequence[int]) -> list[int]:
        return list(truth.tokens[len(known) - len(case.prompt) :][:wanted])

    counts = decode(case, engine, perfect, decoding).counts
    grid = case.grid()
    windows = {grid.deciding(len(case.prompt) + n) for n in range(len(truth.tokens))}
    assert counts.passes - counts.repeats == len(windows)
    assert (counts.rollbacks, counts.drafted) == (0, counts.accepted)
    assert decoding.counts == counts


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_no_drafter_at_all_is_only_slow(case: Case) -> None:
    """Without drafts the answer is the same, and no token of it counts as drafted."""
    engine = Engine(case.seed, case.levels)
    decoding = decoding_of(case)
    counts = decode(case, engine, lambda *_: [], decoding).counts
    assert answer_of(decoding) == reference(case, engine)
    assert (counts.drafted, counts.accepted, counts.rollbacks) == (0, 0, 0)


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_every_position_is_decided_by_one_pass(case: Case) -> None:
    """The grid is what the definition says at each place, and all positions of a window name the same pass."""
    grid = case.grid()
    assert grid.kind is case.kind
    for position in range(len(case.prompt), case.length):
        wanted = grid.deciding(position)
        assert (wanted.total, wanted.cached, wanted.prefix) == shape_of(case, position)
        assert wanted.first <= position <= wanted.last <= wanted.total
        assert wanted.last - wanted.first < case.window
        assert {grid.deciding(other) for other in (wanted.first, wanted.last)} == {wanted}


# --- implementations that are wrong, to see that the law above notices ------------------------------------------------


class GoesOn(Decoding):
    """Takes the rows after a disagreement too, though they saw a wrong token."""

    __slots__ = ()

    def _held(self, index: int, token: int) -> bool:  # noqa: ARG002 - as the method that it replaces
        return True


class Trusts(Decoding):
    """Takes the drafter's first token unseen where the row has it among its best."""

    __slots__ = ()

    def take(self, rows: Sequence[Row]) -> int | Undecided:
        """As of a row that has the draft's token alone."""
        guess = self.candidate()[self.wanted().first] if self.wanted().first < self.wanted().total else None
        if guess in rows[0].ids:
            rows = [Row((guess, VOCABULARY), (0.0, -99.0)), *rows[1:]]
        return super().take(rows)


class FirstShown(Decoding):
    """Takes the token that the engine shows first, as if ties had an order."""

    __slots__ = ()

    def take(self, rows: Sequence[Row]) -> int | Undecided:
        """As of rows in which nothing is equal."""
        return super().take([Row(row.ids, tuple(-float(n) for n in range(len(row.ids)))) for row in rows])


class Guesses(Decoding):
    """Settles for the lowest id that is shown where more might be equal."""

    __slots__ = ()

    def take(self, rows: Sequence[Row]) -> int | Undecided:
        """As of rows that end below their best."""
        return super().take([Row((*row.ids, VOCABULARY), (*row.logprobs, -99.0)) for row in rows])


class Forgets(Decoding):
    """Chooses end tokens before ``min_tokens``."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ending = replace(self._ending, min_tokens=0)


class KeepsAll(Decoding):
    """Shows of each row what the verifier happened to send."""

    __slots__ = ()

    def take(self, rows: Sequence[Row]) -> int | Undecided:
        """As the rows came."""
        outcome = super().take(rows)
        if isinstance(outcome, int):
            self.rows[-outcome:] = rows[:outcome]
        return outcome


class AsksForLittle(Decoding):
    """Asks for no more logprobs than the caller wants to see, unless it must."""

    __slots__ = ()

    def logprobs_wanted(self) -> int:
        """As without them, at first."""
        top, self._top = self._top, None
        try:
            return max(super().logprobs_wanted(), min(MOST, (top or 0) + 1))
        finally:
            self._top = top


class KeepsTheDraft(Decoding):
    """Keeps the rest of a draft that forked."""

    __slots__ = ()

    def _settle(self, decided: Sequence[int]) -> None:
        rest = self._draft[len(decided) :]
        super()._settle(decided)
        self._draft = rest


class MovingGrid(Grid):
    """Begins a window wherever the next token is, so that the pass depends on what was accepted before."""

    __slots__ = ()

    def deciding(self, position: int) -> Pass:
        """A pass of W tokens from here."""
        found = super().deciding(position)
        return replace(found, total=min(position + self.window, self.length - 1), first=position)


class LateGrid(Grid):
    """Takes the last position of each window from the next pass."""

    __slots__ = ()

    def deciding(self, position: int) -> Pass:
        """As of the position before, in the middle."""
        return super().deciding(min(position + 1, self.length - 1))


def fails(law: Callable[[Case, int], None], kinds: Collection[GridKind] = tuple(GridKind)) -> bool:
    """Whether some request and some drafter break the law, on one of these grids."""

    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(case=cases().filter(lambda case: case.kind in kinds), seed=st.integers(0, 2**32))
    def attempt(case: Case, seed: int) -> None:
        law(case, seed)

    try:
        attempt()
    except Broken:
        return True
    return False


class Broken(Exception):
    """The law does not hold."""


def compared(*parts: str, make: type[Decoding] = Decoding, kind: type[Grid] = Grid) -> Callable[[Case, int], None]:
    """The law for some parts of the answer, or for its counts."""

    def law(case: Case, seed: int) -> None:
        engine = Engine(case.seed, case.levels)
        truth = reference(case, engine)
        right = case.grid()
        decoding = decoding_of(case, make, kind(right.kind, right.window, right.prompt, right.length, right.block))
        try:
            tally = decode(case, engine, erratic(case, truth, seed), decoding)
        except AssertionError as exc:
            raise Broken from exc  # a pass that the definition does not have
        except UnusableRow:
            return  # a wrong one may ask for what no row shows, and that alone is no proof
        found = {**asdict(answer_of(decoding)), "counts": decoding.counts}
        right_ones = {**asdict(truth), "counts": tally.counts}
        if any(found[part] != right_ones[part] for part in parts):
            raise Broken

    return law


@pytest.mark.parametrize("grid", GridKind)
@pytest.mark.parametrize(
    ("make", "part"),
    [
        (GoesOn, "tokens"),
        (Trusts, "tokens"),
        (FirstShown, "tokens"),
        (Guesses, "tokens"),
        (Forgets, "tokens"),
        (KeepsAll, "rows"),
        (AsksForLittle, "rows"),
        (KeepsTheDraft, "counts"),
    ],
)
def test_a_wrong_implementation_is_noticed(make: type[Decoding], part: str, grid: GridKind) -> None:
    """For every decoding that is known to be wrong, some drafter changes what it is known to get wrong, on any grid."""
    assert fails(compared(part, make=make), {grid})


@pytest.mark.parametrize("grid", GridKind)
@pytest.mark.parametrize("kind", [MovingGrid, LateGrid])
def test_a_wrong_grid_is_noticed(kind: type[Grid], grid: GridKind) -> None:
    """The tokens change, or a pass reads what none wrote, where a position's pass is another than the definition's."""
    assert fails(compared("tokens", kind=kind), {grid})


# --- how much is drafted ----------------------------------------------------------------------------------------------


class Scripted:
    """A verifier for a session, over the scripted engine; text is none of its matters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def score(self, wanted: Pass, candidate: Sequence[int], k: int, _grid: Grid) -> Rows:
        """As `Verifier.score`."""
        return Rows(self._engine, (wanted.total, wanted.cached, wanted.prefix), tuple(candidate), wanted.first, k)

    async def text(self, question: dict[str, Any], read: Callable[[Any], Piece]) -> Piece:
        """As `Verifier.text`."""
        return read({"text": "", "stop": None, "decoded": [["?"] * len(row) for row in question["decode"]]})


class Scribe:
    """A drafter for a session that counts what it drafted."""

    def __init__(self, case: Case, draft: Drafter) -> None:
        self._size = len(case.prompt)
        self._draft = draft
        self.drafted = 0

    async def draft(self, ids: Sequence[int], count: int, _fewest: int) -> list[int]:
        """As `Drafter.draft`."""
        found = self._draft(count, ids)[:count]
        self.drafted += len(found)
        return found


def answered(case: Case, engine: Engine, draft: Drafter, *, stream: bool) -> tuple[Decoding, int]:
    """A whole session's decoding, and how many tokens were drafted for it."""
    members = {"prompt": list(case.prompt), "temperature": 0, "max_tokens": case.max_tokens, "stream": stream}
    model = replace(MODEL, length=10**6, vocabulary=VOCABULARY)
    wanted = read_wanted(InferenceRequest(TEXT_PATH, b"", members), model, window=case.window, most_logprobs=MOST)
    decoding, scribe = decoding_of(case), Scribe(case, draft)
    verifier, drafter = cast(Verifier, Scripted(engine)), cast(Drafting, scribe)
    session = Session(verifier, drafter, wanted, decoding, case.grid(), case.prompt, case.ending().most)

    async def drive() -> None:
        while (await session.next()).end is None:
            pass

    asyncio.run(drive())
    return decoding, scribe.drafted


@settings(max_examples=150, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32), stream=st.booleans())
def test_what_is_drafted_in_vain_is_bounded(case: Case, seed: int, stream: bool) -> None:
    """The bound is `Reach`'s: by what is accepted, and by how often a draft is refuted. The answer is the same."""
    engine = Engine(case.seed, case.levels)
    truth = reference(case, engine)
    decoding, drafted = answered(case, engine, erratic(case, truth, seed), stream=stream)
    assert tuple(decoding.tokens) == truth.tokens
    counts, beyond = decoding.counts, case.window * (0 if stream else 3)
    assert drafted <= 2.5 * counts.accepted + 2.5 * case.window * (counts.rollbacks + 1) + 1.5 * beyond


@pytest.mark.parametrize(("every", "most"), [(30, 5_500), (300, 3_500), (2000, 1_100)])
def test_a_drafter_that_forks_now_and_then(every: int, most: int) -> None:
    """Of an answer of 1,024 tokens in windows of 128: some 5,400, and 13,500 were four windows drafted each time."""
    case = Case(
        kind=GridKind.PROMPT,
        window=128,
        block=128,
        prompt=(1, 2, 3),
        length=2000,
        max_tokens=1024,
        min_tokens=0,
        eos=None,
        model_stops=frozenset(),
        stops=frozenset(),
        ignore_eos=True,
        top=None,
        seed=5,
        levels=256,
    )
    engine = Engine(case.seed, case.levels)
    truth = reference(case, engine).tokens

    def draft(wanted: int, known: Sequence[int]) -> list[int]:
        at = len(known) - len(case.prompt)
        ahead = truth[at : at + wanted]
        return [token if (at + n) % every else (token + 1) % VOCABULARY for n, token in enumerate(ahead, 1)]

    decoding, drafted = answered(case, engine, draft, stream=False)
    assert (tuple(decoding.tokens), len(truth)) == (truth, 1024)
    assert decoding.counts.rollbacks >= 1024 // every - 1
    assert drafted <= most


def test_the_search_for_failures_finds_none_in_the_right_one() -> None:
    """What notices the wrong implementations is no search that always fails."""
    assert not fails(compared("tokens", "rows", "finish_reason", "stop_reason", "counts"))
