"""The default store: one SQLite file, one connection, one thread.

Why one connection: SQLite before 3.51.3 can corrupt a database in WAL mode when two connections write or checkpoint
at the same moment (sqlite.org/wal.html, "the WAL-reset bug"), and Debian 12 ships 3.40.1. The file is therefore
opened in exclusive locking mode, which makes a second gateway on the same file a clear error instead of a risk; a
reader needs a copy.

Durability is that of ``synchronous=NORMAL`` with a WAL: a crash of the process loses nothing that was recorded, a
loss of power may lose the last transactions. A damaged file is set aside under another name, never deleted, and a new
one started.
"""

import logging
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from pathlib import Path
from typing import Final

from app.determinism.output import Blocks
from app.observation.batch import Addition, additions, judged
from app.observation.store import (
    DEFAULT_RETENTION,
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
)

SCHEMA_VERSION: Final = 2
APPLICATION_ID: Final = 0x52505253
"""``RPRS``: tells our file from any other SQLite file."""

_PRUNE_AT_ONCE: Final = 5_000
_BUSY_SECONDS: Final = 0.5
_WAL_BYTES: Final = 16 * 2**20
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_SCHEMA: Final = """
CREATE TABLE cohorts (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL, mode TEXT NOT NULL, posture TEXT NOT NULL,
    model TEXT NOT NULL,
    reference_digest TEXT NOT NULL, reference_blocks TEXT NOT NULL, reference_replica TEXT NOT NULL,
    reference_peak INTEGER, reference_cached INTEGER,
    matched INTEGER NOT NULL, diverged INTEGER NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL,
    UNIQUE (key, mode, posture)
) STRICT;
CREATE INDEX cohorts_by_age ON cohorts (last_seen);
CREATE TABLE outputs (
    cohort INTEGER NOT NULL REFERENCES cohorts (id) ON DELETE CASCADE,
    digest TEXT NOT NULL, seen INTEGER NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL,
    PRIMARY KEY (cohort, digest)
) STRICT, WITHOUT ROWID;
"""

_SECOND: Final = """
CREATE TABLE specimens (
    cohort INTEGER NOT NULL REFERENCES cohorts (id) ON DELETE CASCADE,
    digest TEXT NOT NULL, request_id TEXT NOT NULL, replica TEXT NOT NULL, at REAL NOT NULL, origin TEXT NOT NULL,
    coresident_peak INTEGER, cached_tokens INTEGER, tokens INTEGER, fork_tokens INTEGER, fork_characters INTEGER,
    margin REAL, similarity REAL, cause TEXT, text TEXT,
    PRIMARY KEY (cohort, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    label TEXT NOT NULL, cohort INTEGER NOT NULL REFERENCES cohorts (id) ON DELETE CASCADE,
    digest TEXT NOT NULL, request_id TEXT NOT NULL, at REAL NOT NULL
) STRICT;
CREATE INDEX runs_by_label ON runs (label, id);
CREATE INDEX runs_by_cohort ON runs (cohort);
"""

_SCHEMAS: Final = (_SCHEMA, _SECOND)
"""What each version added to the one before."""

_LOAD: Final = """
SELECT id, model, reference_digest, reference_blocks, reference_replica, reference_peak, reference_cached,
       matched, diverged, first_seen, last_seen
FROM cohorts WHERE key = ? AND mode = ? AND posture = ?
"""

_ADD_COHORT: Final = """
INSERT INTO cohorts (key, mode, posture, model, reference_digest, reference_blocks, reference_replica,
                     reference_peak, reference_cached, matched, diverged, first_seen, last_seen)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key, mode, posture) DO UPDATE SET
    matched = matched + excluded.matched, diverged = diverged + excluded.diverged,
    last_seen = max(last_seen, excluded.last_seen)
RETURNING id, reference_digest, reference_blocks, reference_replica, reference_peak, reference_cached
"""

_ADD_OUTPUT: Final = """
INSERT INTO outputs (cohort, digest, seen, first_seen, last_seen) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (cohort, digest) DO UPDATE SET seen = seen + excluded.seen, last_seen = max(last_seen, excluded.last_seen)
"""

_ADD_VERDICTS: Final = "UPDATE cohorts SET matched = matched + ?, diverged = diverged + ? WHERE id = ?"

_SPECIMEN: Final = tuple(field.name for field in fields(Specimen))
_ADD_SPECIMEN: Final = (
    f"INSERT INTO specimens (cohort, {', '.join(_SPECIMEN)}) "  # noqa: S608 - the names of our own fields
    f"VALUES (?, {', '.join('?' * len(_SPECIMEN))}) ON CONFLICT DO NOTHING"
)
_SPECIMENS: Final = (
    f"SELECT {', '.join('specimens.' + name for name in _SPECIMEN)}, seen FROM specimens "  # noqa: S608 - as above
    "JOIN outputs USING (cohort, digest) JOIN cohorts ON cohorts.id = specimens.cohort "
    "WHERE key = ? AND mode = ? AND posture = ? ORDER BY at"
)
_ADD_RUN: Final = "INSERT INTO runs (label, cohort, digest, request_id, at) VALUES (?, ?, ?, ?, ?)"
_RUN: Final = """
SELECT runs.id, key, mode, posture, runs.digest, runs.request_id, runs.at, text
FROM runs JOIN cohorts ON cohorts.id = runs.cohort
LEFT JOIN specimens ON specimens.cohort = runs.cohort AND specimens.digest = runs.digest
WHERE label = ? AND runs.id > ? ORDER BY runs.id LIMIT ?
"""
_COHORTS: Final = """
SELECT key, mode, posture, model, (SELECT sum(seen) FROM outputs WHERE cohort = id), matched, diverged,
       (SELECT count(*) FROM outputs WHERE cohort = id), first_seen, last_seen
FROM cohorts WHERE last_seen < ? AND (? IS NULL OR mode = ?) AND diverged >= ? ORDER BY last_seen DESC LIMIT ?
"""

_FOREVER: Final = 1e300

_log = logging.getLogger(__name__)


class SqliteStore:
    """The ledger in the file at ``path``; create it on the thread that will use it.

    ``retention`` counts the bytes of the file's pages that are in use. Raises StoreError when the file cannot be opened
    or is another program's, StoreVersionError when a newer version wrote it.
    """

    def __init__(self, path: Path, retention: Retention = DEFAULT_RETENTION) -> None:
        self._retention = retention
        self._path = path
        try:
            self._connection = _open(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise StoreError(f"the ledger {path} cannot be opened: {error}") from error
            with _translated(f"the damaged ledger {path} cannot be replaced"):
                _set_aside(path, error)
                self._connection = _open(path)
        except OSError as error:
            raise StoreError(f"the ledger {path} cannot be opened: {error}") from error
        self._inode = _inode(path)

    def load(self, cohort: CohortId) -> Cohort | None:
        """See `Store.load`."""
        with _translated("the ledger cannot be read"):
            row = self._connection.execute(_LOAD, cohort).fetchone()
            if row is None:
                return None
            outputs = dict(self._connection.execute("SELECT digest, seen FROM outputs WHERE cohort = ?", (row[0],)))
            return Cohort(
                id=cohort,
                model=row[1],
                reference=Reference(row[2], Blocks.from_text(row[3]), *row[4:7]),
                counts=CohortCounts(outputs, matched=row[7], diverged=row[8]),
                first_seen=row[9],
                last_seen=row[10],
            )

    def record(self, sightings: Sequence[Sighting]) -> Mapping[CohortId, Reference]:
        """See `Store.record`."""
        others: dict[CohortId, Reference] = {}
        rows: dict[CohortId, int] = {}
        # What is written into a file that has no name any more is gone when it is closed.
        if _inode(self._path) != self._inode:
            raise StoreError(f"the ledger {self._path} was moved or removed")
        with _translated("the ledger cannot be written"), self._transaction() as connection:
            for cohort, addition in additions(sightings).items():
                rows[cohort], stored = _add(connection, addition)
                if stored is not None:
                    others[cohort] = stored
            connection.executemany(
                _ADD_SPECIMEN, [(rows[each.cohort], *astuple(each.specimen)) for each in sightings if each.specimen]
            )
            connection.executemany(
                _ADD_RUN,
                [
                    (each.run, rows[each.cohort], each.output, each.request_id, each.at)
                    for each in sightings
                    if each.run
                ],
            )
        return others

    def cohorts(
        self, *, limit: int, before: float | None = None, mode: str | None = None, diverged: bool = False
    ) -> list[CohortSummary]:
        """See `Store.cohorts`."""
        with _translated("the ledger cannot be read"):
            values = (_FOREVER if before is None else before, mode, mode, int(diverged), limit)
            found = self._connection.execute(_COHORTS, values).fetchall()
        return [CohortSummary(CohortId(*row[:3]), *row[3:]) for row in found]

    def specimens(self, cohort: CohortId) -> list[tuple[Specimen, int]]:
        """See `Store.specimens`."""
        with _translated("the ledger cannot be read"):
            found = self._connection.execute(_SPECIMENS, cohort).fetchall()
        return [(Specimen(*row[:-1]), row[-1]) for row in found]

    def runs(self) -> list[tuple[str, int]]:
        """See `Store.runs`."""
        with _translated("the ledger cannot be read"):
            return self._connection.execute(
                "SELECT label, count(*) FROM runs GROUP BY label ORDER BY max(id) DESC"
            ).fetchall()

    def run(self, label: str, *, after: int, limit: int) -> list[RunEntry]:
        """See `Store.run`."""
        with _translated("the ledger cannot be read"):
            found = self._connection.execute(_RUN, (label, after, limit)).fetchall()
        return [RunEntry(row[0], CohortId(*row[1:4]), *row[4:]) for row in found]

    def size(self) -> StoreSize:
        """See `Store.size`."""
        with _translated("the ledger cannot be read"):
            (held,) = self._connection.execute("SELECT count(*) FROM cohorts").fetchone()
            return StoreSize(held, self._bytes())

    def _bytes(self) -> int:
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def prune(self, now: float) -> int:
        """See `Store.prune`: the cohorts longest unseen go first, at most 5,000 a call."""
        with _translated("the ledger cannot be pruned"), self._transaction() as connection:
            (held,) = connection.execute("SELECT count(*) FROM cohorts").fetchone()
            (stale,) = connection.execute(
                "SELECT count(*) FROM cohorts WHERE last_seen < ?", (now - self._retention.seconds,)
            ).fetchone()
            # Cohorts are taken for equally large: what is over in bytes is over in cohorts.
            bytes_held = max(self._bytes(), 1)
            over = math.ceil(held * (1 - self._retention.bytes / bytes_held)) if held else 0
            going = min(_PRUNE_AT_ONCE, max(stale, held - self._retention.cohorts, over))
            if going <= 0:
                return 0
            oldest = "DELETE FROM cohorts WHERE id IN (SELECT id FROM cohorts ORDER BY last_seen LIMIT ?)"
            return connection.execute(oldest, (going,)).rowcount

    def close(self) -> None:
        """See `Store.close`; the write-ahead log is folded into the file."""
        with suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            # The first error tells what happened; SQLite may have rolled back already.
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise


def _add(connection: sqlite3.Connection, addition: Addition) -> tuple[int, Reference | None]:
    """Add to one cohort. Its row, and its reference where that is another than the one that comes with the addition."""
    first = addition.first
    reference = first.reference
    values = (
        *first.cohort,
        first.model,
        reference.digest,
        reference.blocks.to_text(),
        reference.replica,
        reference.coresident_peak,
        reference.cached_tokens,
        addition.matched,
        addition.diverged,
        first.at,
        addition.last_seen,
    )
    row, digest, blocks, *rest = connection.execute(_ADD_COHORT, values).fetchone()
    if addition.unjudged:
        known = connection.execute("SELECT EXISTS (SELECT 1 FROM outputs WHERE cohort = ?)", (row,)).fetchone()[0]
        # Of a new cohort the first is the reference; any other came second, to one that its sender did not know.
        repeats = addition.unjudged[0 if known else 1 :]
        if repeats:
            connection.execute(_ADD_VERDICTS, (*judged(repeats, digest), row))
    connection.executemany(
        _ADD_OUTPUT,
        [(row, output, seen, first.at, addition.last_seen) for output, seen in addition.outputs.items()],
    )
    return row, None if digest == reference.digest else Reference(digest, Blocks.from_text(blocks), *rest)


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Digests of short answers can be guessed by trying, so the file is its owner's alone.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        # Before anything is changed: somebody else's file must stay as it is.
        _check_owner(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("COMMIT")
        if version < SCHEMA_VERSION:
            connection.executescript(
                f"BEGIN IMMEDIATE; {''.join(_SCHEMAS[version:])} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        _check_pages(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or version):
        raise StoreError(f"{path} is a database of another program; choose another state directory")
    if version > SCHEMA_VERSION:
        raise StoreVersionError(
            f"the ledger {path} has schema {version}, and this version of Reprise knows {SCHEMA_VERSION}: "
            "upgrade Reprise, or move the file away to start a new ledger"
        )


def _check_pages(connection: sqlite3.Connection) -> None:
    for (finding,) in connection.execute("PRAGMA quick_check(1)"):
        if finding != "ok":
            raise _Damaged(finding)


class _Damaged(sqlite3.DatabaseError):
    """What SQLite's own check found."""


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    # Extended codes carry the primary one in their low byte.
    return isinstance(error, _Damaged) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _set_aside(path: Path, error: sqlite3.DatabaseError) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _log.error(
        "the ledger %s is damaged (%s); it was set aside as %s and a new one is started", path, error, aside.name
    )


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{what}: {error}") from error
