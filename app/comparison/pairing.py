"""Which answer belongs to which: repeats of one canonical request, in the order in which they appear."""

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from app.comparison.entry import Entry, NotComparable, Side
from app.comparison.jsonl import Record
from app.determinism.canonical import canonical
from app.determinism.mode import REQUESTABLE_MODES
from app.determinism.request import InferenceRequest


def match(left: Sequence[Entry], right: Sequence[Entry]) -> tuple[list[tuple[Entry, Entry]], list[Entry], list[Entry]]:
    """Pairs in the order of the left side, then what only the left side has, then what only the right side has.

    Repeats of a request meet in their order. Where one side has it once, that one is the reference of all the others'.
    """
    waiting: dict[str, deque[Entry]] = defaultdict(deque)
    for entry in right:
        waiting[entry.key].append(entry)
    asked = Counter(entry.key for entry in left)
    references = {key: others[0] for key, others in waiting.items() if len(others) == 1}
    pairs: list[tuple[Entry, Entry]] = []
    alone: list[Entry] = []
    for entry in left:
        others = waiting[entry.key]
        if asked[entry.key] == 1 and others:
            pairs += ((entry, other) for other in others)
            others.clear()
        elif others:
            pairs.append((entry, others.popleft()))
        elif entry.key in references:
            pairs.append((entry, references[entry.key]))
        else:
            alone.append(entry)
    left_over = {id(entry) for others in waiting.values() for entry in others}
    return pairs, alone, [entry for entry in right if id(entry) in left_over]


def sides(
    left: tuple[str, Iterable[Record]], right: tuple[str, Iterable[Record]], *, any_model: bool
) -> tuple[Side, Side]:
    """Two files as sides, each given by its name and its records.

    They are matched by canonical request; by ``custom_id`` where a batch's results, which hold no request, are among
    them. Raises NotComparable naming the line that then has none.
    """
    files = [(name, list(records)) for name, records in (left, right)]
    by_id = any(record.request is None for _, records in files for record in records)
    first, second = (_side(name, records, by_id=by_id, any_model=any_model) for name, records in files)
    return first, second


def served_model(request: InferenceRequest) -> str | None:
    """The model without a mode as its suffix."""
    name, _, suffix = (request.model or "").rpartition("@")
    return name if name and suffix in REQUESTABLE_MODES else request.model


def _side(name: str, records: Iterable[Record], *, by_id: bool, any_model: bool) -> Side:
    entries = []
    for record in records:
        if by_id and record.custom_id is None:
            raise NotComparable(
                f"{name}:{record.line}: there is no 'custom_id', and results without their requests are matched by it"
            )
        key = record.custom_id if by_id else _key(record.request, any_model=any_model)
        entries.append(_entry(record, key or ""))
    return Side(name, tuple(entries))


def _key(request: InferenceRequest | None, *, any_model: bool) -> str:
    """No installation key goes into it, unlike a cohort key: two people who compare their files have to meet."""
    assert request is not None  # noqa: S101 - the caller has asked for all of them
    return hashlib.sha256(canonical(request, None if any_model else served_model(request))).hexdigest()


def _entry(record: Record, key: str) -> Entry:
    output = record.output
    return Entry(
        key=key,
        place=f"line {record.line}",
        title=record.custom_id or "" if record.request is None else _title(record.request),
        digest=output.digest if output is not None else None,
        output=output,
        problem=record.problem,
        mode=record.facts.get("mode"),
        posture=record.facts.get("posture"),
    )


def _title(request: InferenceRequest) -> str:
    """What was asked, for a reader: the last message, or the prompt."""
    messages = request.members.get("messages")
    asked = request.members.get("prompt")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        asked = messages[-1].get("content")
    while isinstance(asked, list) and asked:
        asked = asked[0].get("text") if isinstance(asked[0], dict) else asked[0]
    return " ".join(str(asked if asked is not None else "").split())
