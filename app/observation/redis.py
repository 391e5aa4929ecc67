"""The store of several gateways: one Redis that they share, so that a repeat counts wherever it was answered.

Cohort keys are keyed with the installation's key, so gateways share cohorts only if they share that key; all keys in
Redis are under one prefix. A batch is one Lua script: counts are added inside Redis, where nothing can come between,
and the first reference to arrive stays. What survives a restart of Redis is what its own persistence keeps.

Every wait ends after a second, and nothing is ever sent twice: a batch whose answer was lost counts as dropped, though
Redis may have it. It wants Redis 6.2 or later with ``maxmemory-policy noeviction``, and is not for Redis Cluster,
because a batch touches keys of many slots.
"""

import hashlib
import json
import logging
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

from app.determinism.output import Blocks
from app.observation import redis_scripts
from app.observation.batch import Addition, additions
from app.observation.store import (
    DEFAULT_RETENTION,
    PRUNE_COHORTS,
    PRUNE_RUN_ANSWERS,
    RUN_CHARACTERS,
    RUN_SHARE,
    Cohort,
    CohortCounts,
    CohortId,
    CohortSummary,
    Reference,
    Retention,
    RunEntry,
    Sighting,
    Specimen,
    StoreError,
    StoreSize,
    StoreVersionError,
    specimen_row,
)

SECONDS: Final = 1.0
"""The most that a connection, or an answer of Redis, may take."""

_COHORTS_A_SCRIPT: Final = 250
_ANSWERS_A_SCRIPT: Final = 500
"""Redis serves nobody else while a script runs; this many are a few milliseconds."""

_PLACES: Final = frozenset({"host", "port", "db", "username", "password", "path", "connection_class"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Redis is, from its URL. The password is in here and nowhere in its `repr`."""

    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Read ``redis://``, ``rediss://`` (TLS) or ``unix://``, with ``ssl_`` options as query.

        Raises ValueError saying what is wrong, and nothing of the URL itself.
        """
        try:
            options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # the library leaves it without
        except ValueError:
            # The library's error may repeat the part of the URL that has the password.
            raise ValueError("it must be redis://[user:password@]host[:port][/number], rediss:// or unix://") from None
        # Not named: where a URL is written wrongly, anything may stand where a name should.
        if any(name not in _PLACES and not name.startswith("ssl_") for name in options):
            raise ValueError("it has an option that is not known; only those that begin with ssl_ are")
        return cls(options)

    def connect(self) -> "Redis":
        """A client that waits a second at most and repeats nothing; it connects at its first command."""
        options: dict[str, Any] = {
            **self.options,
            "socket_connect_timeout": SECONDS,
            "socket_timeout": SECONDS,
            # A repeated batch would count twice, and the library repeats by itself where it is not told otherwise.
            "retry": Retry(NoBackoff(), 0),
            # With the third version a name and a password travel in one command that old servers repeat in errors.
            "protocol": 2,
            "decode_responses": True,
        }
        return Redis(connection_pool=ConnectionPool(**options))

    def mask(self, text: str) -> str:
        """A text without the password."""
        password = self.options.get("password")
        return text.replace(password, "***") if password else text


class RedisStore:
    """The ledger in the Redis at ``address``, all of it in keys that begin with ``prefix``.

    ``retention`` counts what Redis takes for it, estimated. Raises StoreError when Redis cannot be used,
    StoreVersionError when a newer version wrote what is there.
    """

    def __init__(self, address: Address, retention: Retention = DEFAULT_RETENTION, *, prefix: str = "reprise") -> None:
        self._address = address
        self._retention = retention
        self._prefix = f"{prefix}:"
        self._client = address.connect()
        self._hashes = self._script(redis_scripts.READ)
        self._record = self._script(redis_scripts.RECORD)
        self._cohorts = self._script(redis_scripts.COHORTS)
        self._runs = self._script(redis_scripts.RUNS)
        self._prune = self._script(redis_scripts.PRUNE)
        try:
            with self._translated("cannot be used"):
                self._examine()
                _check_version(self._script(redis_scripts.OPEN)(redis_scripts.FORMAT))
        except StoreError:
            self.close()
            raise

    def load(self, cohort: CohortId) -> Cohort | None:
        """See `Store.load`."""
        with self._translated("cannot be read"):
            stored, outputs = self._read("cohort", cohort)
            if not stored:
                return None
            return Cohort(
                id=cohort,
                model=stored["model"],
                reference=_reference(*(stored[name] for name in ("digest", "blocks", "replica", "peak", "cached"))),
                counts=CohortCounts(
                    {digest: int(seen) for digest, seen in outputs.items()},
                    matched=int(stored["matched"]),
                    diverged=int(stored["diverged"]),
                ),
                first_seen=float(stored["first"]),
                last_seen=float(stored["last"]),
            )

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """See `Store.record`."""
        if not sightings:
            return {}
        added = additions(sightings)
        ids = {cohort: _id(cohort) for cohort in added}
        arguments: list[str | int] = [len(added)]
        for cohort, addition in added.items():
            arguments += [ids[cohort], *_described(cohort, addition)]
        specimens = [(ids[each.cohort], each.specimen) for each in sightings if each.specimen]
        arguments.append(len(specimens))
        for name, specimen in specimens:
            arguments += [name, specimen.digest, specimen.origin, json.dumps(specimen_row(specimen))]
        labelled = [each for each in sightings if each.run]
        arguments.append(len(labelled))
        for each in labelled:
            # The time stands apart, so that no script has to read what others wrote as JSON.
            entry = json.dumps([*each.cohort, each.output, each.request_id])
            arguments += [ids[each.cohort], str(each.run), f"{each.at!r}:{entry}"]
        with self._translated("cannot be written"):
            cohorts = list(added)
            return {cohorts[int(place) - 1]: _reference(*rest) for place, *rest in self._record(*arguments)}

    def cohorts(
        self, *, limit: int, before: float | None = None, mode: str | None = None, diverged: bool = False
    ) -> list[CohortSummary]:
        """See `Store.cohorts`."""
        index = ("diverged" if diverged else "seen") + ("" if mode is None else f":{mode}")
        with self._translated("cannot be read"):
            rows = self._cohorts(index, "+inf" if before is None else f"({before!r}", limit)
            return [_summary(*row) for row in rows]

    def specimens(self, cohort: CohortId) -> list[tuple[Specimen, int]]:
        """See `Store.specimens`."""
        with self._translated("cannot be read"):
            stored, outputs = self._read("specimens", cohort)
            found = [(Specimen(*json.loads(text)), int(outputs[digest])) for digest, text in stored.items()]
        return sorted(found, key=lambda each: each[0].at)

    def runs(self, *, limit: int) -> list[tuple[str, int]]:
        """See `Store.runs`."""
        with self._translated("cannot be read"):
            return [(label, count) for label, count in self._runs(limit)]

    def run(self, label: str, *, after: int, limit: int) -> list[RunEntry]:
        """See `Store.run`."""
        with self._translated("cannot be read"):
            key = f"{self._prefix}run:{label}"
            members = cast(list[str], self._client.zrange(key, f"({after}", "+inf", byscore=True, offset=0, num=limit))
            entries, places = [], []
            for member in members:
                number, name, at, entry = member.split(":", 3)
                *identity, output, request_id = json.loads(entry)
                entries.append(RunEntry(int(number), CohortId(*identity), output, request_id, float(at)))
                places.append((f"{self._prefix}specimens:{name}", output))
            fitting = self._fitting(places)
            pipeline = self._client.pipeline(transaction=False)
            for place in places[:fitting]:
                pipeline.hget(*place)
            return [
                replace(entry, text=_text(specimen))
                for entry, specimen in zip(entries[:fitting], pipeline.execute(), strict=True)
            ]

    def _fitting(self, places: Sequence[tuple[str, str]]) -> int:
        """How many of these members of hashes, the first ones, go onto a page of a run; see `RUN_CHARACTERS`.

        By their size in JSON, which is more than that of the texts in them.
        """
        pipeline = self._client.pipeline(transaction=False)
        for place in places:
            pipeline.hstrlen(*place)
        sizes = accumulate(cast(list[int], pipeline.execute()))
        return max(bisect(list(sizes), RUN_CHARACTERS), 1) if places else 0

    def size(self) -> StoreSize:
        """See `Store.size`."""
        with self._translated("cannot be read"):
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zcard(f"{self._prefix}seen")
            pipeline.mget(f"{self._prefix}bytes", f"{self._prefix}answers")
            held, (weight, answers) = pipeline.execute()
            return StoreSize(held, int(weight or 0), int(answers or 0))

    def prune(self, now: float) -> int:
        """See `Store.prune`; the answers of runs that are recorded first go first, and the cohorts longest unseen."""
        keep = self._retention
        limits = (repr(now - keep.seconds), keep.cohorts, keep.bytes, keep.run_answers, int(keep.bytes * RUN_SHARE))
        went = gone = 0
        with self._translated("cannot be pruned"):
            while went < PRUNE_COHORTS and gone < PRUNE_RUN_ANSWERS:
                cohorts, answers = self._prune(*limits, _COHORTS_A_SCRIPT, _ANSWERS_A_SCRIPT)
                went, gone = went + cohorts, gone + answers
                if cohorts < _COHORTS_A_SCRIPT and answers < _ANSWERS_A_SCRIPT:
                    break
        return went + gone

    def close(self) -> None:
        """See `Store.close`."""
        with suppress(RedisError, OSError):
            self._client.close()
            self._client.connection_pool.disconnect()

    def _examine(self) -> None:
        """Refuse a Redis Cluster, and warn of a Redis that would throw cohorts out by itself."""
        try:
            cluster, memory = self._client.info("cluster"), self._client.info("memory")
        except NoPermissionError:
            return
        if cluster.get("cluster_enabled"):
            raise StoreError("the ledger's Redis is a Redis Cluster, which is not supported; give it one of its own")
        policy = memory.get("maxmemory_policy")
        if memory.get("maxmemory") and policy != "noeviction":
            _log.warning(
                "the ledger's Redis has maxmemory-policy %s and may throw cohorts out by itself; use noeviction", policy
            )

    def _script(self, text: str) -> Callable[..., Any]:
        script = self._client.register_script(text)
        return lambda *arguments: script(args=(self._prefix, *arguments))

    def _read(self, kind: str, cohort: CohortId) -> tuple[dict[str, str], dict[str, str]]:
        """One hash of a cohort, and its outputs, as they are at one moment."""
        name = _id(cohort)
        flat, outputs = self._hashes(f"{kind}:{name}", f"outputs:{name}")
        return _pairs(flat), _pairs(outputs)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        # The last three are what a foreign hand in our keys looks like.
        except (RedisError, OSError, ValueError, TypeError, LookupError) as error:
            # Without its cause: a traceback could tell what the message does not.
            raise StoreError(f"the ledger's Redis {what}: {self._address.mask(str(error))}") from None


def _check_version(found: str) -> None:
    if not found.isdecimal():
        raise StoreError("the ledger's Redis holds keys of another program under our prefix")
    if int(found) > redis_scripts.FORMAT:
        raise StoreVersionError(
            f"the ledger in Redis has format {found}, and this version of Reprise knows {redis_scripts.FORMAT}: "
            "upgrade Reprise, or give it another database of that Redis"
        )


def _id(cohort: CohortId) -> str:
    """A short name for a cohort, whatever its three parts are made of."""
    return hashlib.sha256(json.dumps(cohort).encode()).hexdigest()[:32]


def _described(cohort: CohortId, addition: Addition) -> list[str | int]:
    """One cohort of a batch, as the script takes it."""
    first = addition.first
    reference = first.reference
    words: list[str | int] = [*cohort, first.model, reference.digest, reference.blocks.to_text(), reference.replica]
    words += [_number(reference.coresident_peak), _number(reference.cached_tokens)]
    words += [repr(first.at), repr(addition.last_seen), addition.matched, addition.diverged]
    words += [len(addition.unjudged), *addition.unjudged, len(addition.outputs)]
    for output, seen in addition.outputs.items():
        words += [output, seen]
    return words


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _summary(*row: str) -> CohortSummary:
    key, mode, posture, model, observed, matched, diverged, first, last, peak, distinct, *origins = row
    return CohortSummary(
        CohortId(key, mode, posture),
        model,
        int(observed),
        int(matched),
        int(diverged),
        int(distinct),
        float(first),
        float(last),
        int(peak) if peak else None,
        tuple(sorted(origins)),
    )


def _reference(digest: str, blocks: str, replica: str, peak: str, cached: str) -> Reference:
    return Reference(
        digest, Blocks.from_text(blocks), replica, int(peak) if peak else None, int(cached) if cached else None
    )


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _text(specimen: str | None) -> str | None:
    return Specimen(*json.loads(specimen)).text if specimen else None
