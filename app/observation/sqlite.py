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
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from app.determinism.divergence import Verdict
from app.determinism.output import Blocks
from app.observation.store import Cohort, CohortCounts, CohortId, Reference, Sighting, StoreError, StoreVersionError

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x52505253
"""``RPRS``: tells our file from any other SQLite file."""

MAX_COHORTS: Final = 100_000
MAX_AGE_SECONDS: Final = 30 * 86_400.0
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
RETURNING id
"""

_ADD_OUTPUT: Final = """
INSERT INTO outputs (cohort, digest, seen, first_seen, last_seen) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (cohort, digest) DO UPDATE SET seen = seen + excluded.seen, last_seen = max(last_seen, excluded.last_seen)
"""

_log = logging.getLogger(__name__)


class SqliteStore:
    """The ledger in the file at ``path``; create it on the thread that will use it.

    Keeps at most about ``max_cohorts`` cohorts, each for ``max_age`` seconds after it was last seen. Raises StoreError
    when the file cannot be opened or is another program's, StoreVersionError when a newer version wrote it.
    """

    def __init__(self, path: Path, *, max_cohorts: int = MAX_COHORTS, max_age: float = MAX_AGE_SECONDS) -> None:
        self._max_cohorts = max_cohorts
        self._max_age = max_age
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

    def record(self, sightings: Sequence[Sighting]) -> None:
        """See `Store.record`."""
        first: dict[CohortId, Sighting] = {}
        last: dict[CohortId, float] = {}
        verdicts: Counter[tuple[CohortId, Verdict | None]] = Counter()
        outputs: dict[CohortId, Counter[str]] = {}
        for sighting in sightings:
            first.setdefault(sighting.cohort, sighting)
            last[sighting.cohort] = sighting.at
            verdicts[sighting.cohort, sighting.verdict] += 1
            outputs.setdefault(sighting.cohort, Counter())[sighting.output] += 1
        with _translated("the ledger cannot be written"), self._transaction() as connection:
            for cohort, sighting in first.items():
                reference = sighting.reference
                values = (
                    *cohort,
                    sighting.model,
                    reference.digest,
                    reference.blocks.to_text(),
                    reference.replica,
                    reference.coresident_peak,
                    reference.cached_tokens,
                    verdicts[cohort, Verdict.MATCH],
                    verdicts[cohort, Verdict.DIVERGED],
                    sighting.at,
                    last[cohort],
                )
                (row,) = connection.execute(_ADD_COHORT, values).fetchone()
                connection.executemany(
                    _ADD_OUTPUT,
                    [(row, digest, seen, sighting.at, last[cohort]) for digest, seen in outputs[cohort].items()],
                )

    def prune(self, now: float) -> int:
        """See `Store.prune`: the cohorts longest unseen go first, at most 5,000 a call."""
        with _translated("the ledger cannot be pruned"), self._transaction() as connection:
            (held,) = connection.execute("SELECT count(*) FROM cohorts").fetchone()
            (stale,) = connection.execute(
                "SELECT count(*) FROM cohorts WHERE last_seen < ?", (now - self._max_age,)
            ).fetchone()
            going = min(_PRUNE_AT_ONCE, max(stale, held - self._max_cohorts))
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
        if version == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        _check_pages(connection)
    except BaseException:
        connection.close()
        raise
    return connection


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
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StoreError(f"{what}: {error}") from error
