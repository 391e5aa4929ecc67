"""The default store: one SQLite file, one connection, one thread.

Why one connection: SQLite before 3.51.3 can corrupt a database in WAL mode when two connections write or checkpoint
at the same moment (sqlite.org/wal.html, "the WAL-reset bug"), and Debian 12 ships 3.40.1. The file is therefore
opened in exclusive locking mode, which makes a second gateway on the same file a clear error instead of a risk; a
reader needs a copy.

Durability is that of ``synchronous=NORMAL`` with a WAL: a crash of the process loses nothing that was recorded, a
loss of power may lose the last transactions. A damaged file is set aside under another name, never deleted, and a new
one started.
"""

import json
import logging
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

from app.determinism.output import Blocks
from app.observation import sqlite_schema as sql
from app.observation.batch import Addition, additions, judged
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

_BUSY_SECONDS: Final = 0.5
_WAL_BYTES: Final = 16 * 2**20
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

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
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not _is_damage(error):
                raise StoreError(f"the ledger {path} cannot be opened: {error}") from error
            with _translated(f"the damaged ledger {path} cannot be replaced"):
                _set_aside(path, error)
                self._connection = _open(path)
        except OSError as error:
            raise StoreError(f"the ledger {path} cannot be opened: {error}") from error
        self._inode = _inode(path)
        try:
            with _translated(f"the ledger {path} cannot be read"):
                # Counted once: nobody else writes into the file while it is open.
                (self._run_answers,) = self._connection.execute("SELECT count(*) FROM runs").fetchone()
        except StoreError:
            self.close()
            raise

    def load(self, cohort: CohortId) -> Cohort | None:
        """See `Store.load`."""
        with _translated("the ledger cannot be read"):
            row = self._connection.execute(sql.LOAD, cohort).fetchone()
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
                sql.ADD_SPECIMEN,
                [(rows[each.cohort], *specimen_row(each.specimen)) for each in sightings if each.specimen],
            )
            labelled = [
                (each.run, rows[each.cohort], each.output, each.request_id, each.at) for each in sightings if each.run
            ]
            connection.executemany(sql.ADD_RUN, labelled)
        self._run_answers += len(labelled)
        return others

    def cohorts(
        self, *, limit: int, before: float | None = None, mode: str | None = None, diverged: bool = False
    ) -> list[CohortSummary]:
        """See `Store.cohorts`."""
        with _translated("the ledger cannot be read"):
            values = (_FOREVER if before is None else before, mode, mode, int(diverged), limit)
            found = self._connection.execute(sql.COHORTS, values).fetchall()
        return [CohortSummary(CohortId(*row[:3]), *(*row[3:-1], tuple(sorted(json.loads(row[-1]))))) for row in found]

    def specimens(self, cohort: CohortId) -> list[tuple[Specimen, int]]:
        """See `Store.specimens`."""
        with _translated("the ledger cannot be read"):
            found = self._connection.execute(sql.SPECIMENS, cohort).fetchall()
        return [(Specimen(*row[:-1]), row[-1]) for row in found]

    def runs(self, *, limit: int) -> list[tuple[str, int]]:
        """See `Store.runs`."""
        with _translated("the ledger cannot be read"):
            return self._connection.execute(sql.RUNS, (limit,)).fetchall()

    def run(self, label: str, *, after: int, limit: int) -> list[RunEntry]:
        """See `Store.run`."""
        entries: list[RunEntry] = []
        room = RUN_CHARACTERS
        with _translated("the ledger cannot be read"), closing(self._connection.cursor()) as cursor:
            # Row by row, so that what does not go onto the page is not read either.
            for row in cursor.execute(sql.RUN, (label, after, limit)):
                entry = RunEntry(row[0], CohortId(*row[1:4]), *row[4:])
                room -= len(entry.text or "")
                if entries and room < 0:
                    break
                entries.append(entry)
        return entries

    def size(self) -> StoreSize:
        """See `Store.size`."""
        with _translated("the ledger cannot be read"):
            (held,) = self._connection.execute("SELECT count(*) FROM cohorts").fetchone()
            return StoreSize(held, self._bytes(), self._run_answers)

    def _bytes(self) -> int:
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def prune(self, now: float) -> int:
        """See `Store.prune`; the answers of runs that are recorded first go first, and the cohorts longest unseen."""
        keep, oldest = self._retention, now - self._retention.seconds
        with _translated("the ledger cannot be pruned"), self._transaction() as connection:
            (held,) = connection.execute("SELECT count(*) FROM cohorts").fetchone()
            (stale,) = connection.execute("SELECT count(*) FROM cohorts WHERE last_seen < ?", (oldest,)).fetchone()
            first = connection.execute("SELECT at FROM runs ORDER BY id LIMIT ?", (PRUNE_RUN_ANSWERS,))
            expired = sum(1 for _ in takewhile(lambda row: row[0] < oldest, first))
            cohorts, answers = self._over(held)
            going = min(PRUNE_RUN_ANSWERS, max(expired, self._run_answers - keep.run_answers, answers))
            gone = connection.execute(sql.FORGET_RUN_ANSWERS, (going,)).rowcount if going > 0 else 0
            going = min(PRUNE_COHORTS, max(stale, held - keep.cohorts, cohorts))
            went = 0
            if going > 0:
                values = (going, PRUNE_RUN_ANSWERS - gone)
                gone += connection.execute(sql.FORGET_RUN_ANSWERS_OF_COHORTS, values).rowcount
                went = connection.execute(sql.FORGET_COHORTS, (going,)).rowcount
        self._run_answers -= gone
        return went + gone

    def _over(self, cohorts: int) -> tuple[int, int]:
        """How many of so many cohorts, and of the answers of runs, are to go for their bytes; see `RUN_SHARE`.

        Each side is taken for made of equally large ones, and the answers' side is estimated from the texts of some.
        """
        held, most = self._bytes(), self._retention.bytes
        if held <= most:
            return 0, 0
        texts, label = self._connection.execute(sql.RUN_ANSWER_TEXTS).fetchone()
        (labels,) = self._connection.execute(sql.RUN_LABELS).fetchone()
        each = (texts or 0) + sql.RUN_ANSWER_BYTES
        each += labels / max(self._run_answers, 1) * (2 * (label or 0) + sql.RUN_LABEL_BYTES)
        of_answers = min(self._run_answers * each, held)
        of_cohorts = max(held - of_answers, 1)
        excess = min(held - most, of_cohorts - most * (1 - RUN_SHARE))
        return (
            math.ceil(cohorts * excess / of_cohorts),
            math.ceil(min(held - most, of_answers - most * RUN_SHARE) / each),
        )

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
    """Add to one cohort. Its row, and its reference where somebody else was first, see `Store.record`."""
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
    row, digest, blocks, *rest = connection.execute(sql.ADD_COHORT, values).fetchone()
    second = digest != reference.digest
    if addition.unjudged:
        known = connection.execute("SELECT EXISTS (SELECT 1 FROM outputs WHERE cohort = ?)", (row,)).fetchone()[0]
        # Of a new cohort the first is the reference; any other came second, to one that its sender did not know.
        repeats = addition.unjudged[0 if known else 1 :]
        if repeats:
            connection.execute(sql.ADD_VERDICTS, (*judged(repeats, digest), row))
        second = second or bool(known)
    connection.executemany(
        sql.ADD_OUTPUT,
        [(row, output, seen, first.at, addition.last_seen) for output, seen in addition.outputs.items()],
    )
    return row, Reference(digest, Blocks.from_text(blocks), *rest) if second else None


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
        if version < sql.SCHEMA_VERSION:
            connection.executescript(
                f"BEGIN IMMEDIATE; {''.join(sql.SCHEMAS[version:])} PRAGMA application_id = {sql.APPLICATION_ID}; "
                f"PRAGMA user_version = {sql.SCHEMA_VERSION}; COMMIT;"
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
    if application != sql.APPLICATION_ID and (tables or version):
        raise StoreError(f"{path} is a database of another program; choose another state directory")
    if version > sql.SCHEMA_VERSION:
        raise StoreVersionError(
            f"the ledger {path} has schema {version}, and this version of Reprise knows {sql.SCHEMA_VERSION}: "
            "upgrade Reprise, or move the file away to start a new ledger"
        )


def _check_pages(connection: sqlite3.Connection) -> None:
    for (finding,) in connection.execute("PRAGMA quick_check(1)"):
        if finding != "ok":
            raise _Damaged(finding)


class _Damaged(sqlite3.DatabaseError):
    """What SQLite's own check found."""


def _is_damage(error: Exception) -> bool:
    # What SQLite says of a damaged table repeats bytes of it, which need not be text.
    if isinstance(error, _Damaged | UnicodeDecodeError):
        return True
    # Extended codes carry the primary one in their low byte.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _set_aside(path: Path, error: Exception) -> None:
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
