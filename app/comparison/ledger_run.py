"""A run that live traffic was labelled with, read from a gateway's ledger.

The ledger keeps cohort keys and digests, and texts where the operator asked for them. Its keys are those of one
installation, so two of its runs can be compared with each other and not with a file.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
import orjson

from app.comparison.entry import Entry, NotComparable, Side
from app.comparison.server import message_of, reason_of
from app.determinism.output import Output
from app.observation.texts import read_kept

PREFIX: Final = "run:"

_PAGE: Final = 1000
_LABEL: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_MALFORMED: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


def read_run(client: httpx.Client, label: str) -> Side:
    """The run with a label. The client knows the gateway's address and the observatory's key.

    Raises NotComparable where there is no such run, or the gateway does not tell.
    """
    check_label(label, f"{PREFIX}{label[:80]}")
    entries = tuple(_entries(client, label))
    if not entries:
        raise NotComparable(f"{PREFIX}{label}: the ledger of {client.base_url} knows no answer of it")
    return Side(f"{PREFIX}{label}", entries, only_texts=True)


def check_label(label: str, named: str) -> None:
    """Raises NotComparable for what no gateway takes as the label of a run; ``named`` is how the user gave it."""
    if not _LABEL.fullmatch(label):
        raise NotComparable(f"{named}: a label has 1 to 64 letters, digits, dots, dashes and underscores")


def _entries(client: httpx.Client, label: str) -> Iterator[Entry]:
    after = 0
    while page := _page(client, label, after):
        try:
            yield from map(_entry, page)
            last = page[-1]["number"]
            if not (isinstance(last, int) and last > after):
                raise ValueError("numbers that do not grow")
        except _MALFORMED as exc:
            raise NotComparable(f"{client.base_url} answers for {PREFIX}{label} in another shape: {exc}") from exc
        after = last


def _page(client: httpx.Client, label: str, after: int) -> list[Any]:
    where = f"/observatory/api/runs/{label}"
    try:
        response = client.get(where, params={"after": after, "limit": _PAGE})
    except httpx.HTTPError as exc:
        raise NotComparable(f"cannot reach {client.base_url}: {reason_of(exc)}") from exc
    if response.status_code == _UNAUTHORIZED:
        raise NotComparable("the observatory refuses the key; give --key, or set REPRISE_OBSERVATORY_KEY")
    if response.status_code != _OK:
        raise NotComparable(f"{client.base_url}{where}: HTTP {response.status_code}: {message_of(response.content)}")
    try:
        answers = orjson.loads(response.content)["answers"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        answers = None
    if not isinstance(answers, list):
        raise NotComparable(f"{client.base_url}{where} is no observatory of a gateway")
    return answers


def _entry(answer: Mapping[str, Any]) -> Entry:
    cohort, text = answer["cohort"], answer["text"]
    return Entry(
        key=str(cohort["key"]),
        place=f"answer {answer['number']}",
        title=f"cohort {str(cohort['key'])[:16]}, request {answer['request_id']}",
        digest=str(answer["output"]),
        output=None if text is None else _output(text),
        mode=str(cohort["mode"]) or None,
        posture=str(cohort["posture"]) or None,
    )


def _output(text: str) -> Output:
    """What is kept of the texts as an output; its own digest is not the answer's, and is not used."""
    return Output.of(read_kept(text))
