"""What only the SQLite store promises: one owner, versions, damage, a full disk, and no content in the file."""

import logging
import multiprocessing
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from app.determinism.divergence import Verdict
from app.determinism.output import Blocks, Choice, Output
from app.observation.sqlite import SqliteStore
from app.observation.sqlite_schema import APPLICATION_ID, SCHEMA_VERSION
from app.observation.store import CohortId, Reference, Retention, Sighting, Specimen, StoreError, StoreVersionError

COHORT = CohortId("a" * 64, "isolated", "p-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the ledger goes; its folder does not exist yet."""
    return tmp_path / "state" / "ledger.sqlite3"


def sighting(number: int = 0) -> Sighting:
    """A sighting of the reference of one cohort."""
    output = Output.of([Choice(0, f"a secret answer {number}", finish_reason="stop")])
    cohort = COHORT._replace(key=f"{number:064x}") if number else COHORT
    return Sighting(cohort, "smollm2", Reference(output.digest, output.blocks, "r"), output.digest, None, 1.0)


def damage(path: Path, start: int) -> None:
    """Overwrite pages of the file."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * 4096 * 2)


def test_the_file_is_its_owners_alone_and_in_wal_mode(path: Path) -> None:
    """The folder is made, nobody else may read the file, and it says whose it is."""
    store = SqliteStore(path)
    store.record([sighting()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.with_name(path.name + "-wal").exists()
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


def test_no_text_reaches_the_file(path: Path) -> None:
    """The file and its log hold digests, never what was answered."""
    store = SqliteStore(path)
    store.record([sighting()])
    written = b"".join(file.read_bytes() for file in path.parent.iterdir())
    store.close()
    assert b"o-" in written
    assert b"secret" not in written + path.read_bytes()


def test_a_second_owner_is_refused(path: Path) -> None:
    """Two connections to one file are what corrupts it, so the second one gets an error that says so."""
    first = SqliteStore(path)
    with pytest.raises(StoreError, match="cannot be opened: database is locked"):
        SqliteStore(path)
    first.record([sighting()])
    first.close()
    SqliteStore(path).close()


def test_a_newer_ledger_is_refused_and_left_alone(path: Path) -> None:
    """A downgrade never touches what a newer version wrote."""
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreVersionError, match=f"has schema {SCHEMA_VERSION + 1}.*upgrade Reprise"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A file that is not ours is not written to, and not set aside either."""
    path = tmp_path / "theirs.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_what_is_no_database_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of rubbish is kept under another name, said so in the log, and a new ledger begins."""
    path.parent.mkdir()
    path.write_bytes(b"rubbish " * 1000)
    with caplog.at_level(logging.ERROR):
        store = SqliteStore(path)
    assert store.load(COHORT) is None
    store.record([sighting()])
    store.close()
    assert path.with_name("ledger.sqlite3.damaged-1").read_bytes() == b"rubbish " * 1000
    assert "set aside as ledger.sqlite3.damaged-1" in caplog.text


def test_damaged_pages_are_found_and_set_aside(path: Path) -> None:
    """A ledger with overwritten pages is set aside too, each time under its own name."""
    for number in (1, 2):
        store = SqliteStore(path)
        store.record([sighting(n) for n in range(1, 300)])
        store.close()
        damage(path, 4096 * 3)
        store = SqliteStore(path)
        assert store.load(sighting(1).cohort) is None
        store.close()
        assert path.with_name(f"ledger.sqlite3.damaged-{number}").exists()


def test_damage_that_is_no_text_is_set_aside(path: Path) -> None:
    """What SQLite says of it repeats bytes that are not UTF-8, at which Python fails in its own way."""
    store = SqliteStore(path)
    store.record([sighting()])
    store.close()
    damaged = path.read_bytes().replace(b"CREATE TABLE cohorts", b"CREATE \xa5ABLE cohorts")
    path.write_bytes(damaged)
    store = SqliteStore(path)
    assert store.load(COHORT) is None
    store.record([sighting()])
    store.close()
    assert path.with_name("ledger.sqlite3.damaged-1").read_bytes() == damaged


@pytest.mark.parametrize("label", ["r-{}", "hot"])
def test_a_list_of_runs_costs_what_it_shows(path: Path, label: str) -> None:
    """Neither a label for each of many answers nor many answers of one label are looked through for it."""
    store = SqliteStore(path)
    for start in range(0, 5000, 500):
        store.record(
            [sighting()._replace(run=label.format(n), verdict=Verdict.MATCH) for n in range(start, start + 500)]
        )
    steps = []
    store._connection.set_progress_handler(lambda: steps.append(1), 1)
    listed = store.runs(limit=5)
    store._connection.set_progress_handler(None, 0)
    assert listed == ([("hot", 5000)] if label == "hot" else [(f"r-{n}", 1) for n in range(4999, 4994, -1)])
    assert 0 < len(steps) < 200
    store.close()


def test_damage_while_running_is_a_store_error(path: Path) -> None:
    """Pages that go bad under an open store surface as its one error; opening again starts anew."""
    store = SqliteStore(path)
    store.record([sighting(n) for n in range(1, 2000)])
    store.close()
    store = SqliteStore(path)
    # Pages that SQLite holds in memory would hide the damage.
    store._connection.execute("PRAGMA cache_size = 1")
    store._connection.execute("PRAGMA shrink_memory")
    damage(path, 4096 * 20)
    damage(path, 4096 * 60)
    with pytest.raises(StoreError):
        _use_every_page(store)
    store.close()
    SqliteStore(path).close()


def test_a_full_disk_loses_the_batch_and_nothing_else(path: Path) -> None:
    """A batch that does not fit is rolled back whole; what was there can still be read, and writing goes on later."""
    store = SqliteStore(path)
    store.record([sighting()])
    connection = store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.record([sighting(number) for number in range(1, 500)])
    assert store.load(sighting(1).cohort) is None
    assert store.load(COHORT) is not None
    connection.execute("PRAGMA max_page_count = 100000")
    store.record([sighting(1)])
    assert store.load(sighting(1).cohort) is not None
    store.close()


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    """A path below a file is a clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteStore(tmp_path / "file" / "ledger.sqlite3")


def test_a_closed_store_fails_as_a_store(path: Path) -> None:
    """Use after close raises the store's own error."""
    store = SqliteStore(path)
    store.close()
    with pytest.raises(StoreError):
        store.load(COHORT)


def test_unreadable_blocks_are_a_store_error(path: Path) -> None:
    """A row that no version of ours wrote does not raise anything else."""
    store = SqliteStore(path)
    store.record([sighting()])
    store._connection.execute("UPDATE cohorts SET reference_blocks = 'nonsense'")
    with pytest.raises(StoreError, match="not block digests"):
        store.load(COHORT)
    store.close()


def _use_every_page(store: SqliteStore) -> None:
    for number in range(1, 2000):
        store.load(sighting(number).cohort)
        store.record([sighting(number)])


def _record_and_die(path: Path) -> None:
    store = SqliteStore(path)
    store.record([sighting(number) for number in range(1, 100)])
    os._exit(9)


def test_a_killed_writer_loses_nothing_that_was_recorded(path: Path) -> None:
    """A process that dies without closing leaves every recorded batch, and no lock behind."""
    process = multiprocessing.get_context("spawn").Process(target=_record_and_die, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    store = SqliteStore(path)
    assert all(store.load(sighting(number).cohort) is not None for number in range(1, 100))
    store.close()


def test_blocks_come_back_as_they_were(path: Path) -> None:
    """Characters and tokens, several choices, all survive the file."""
    blocks = Blocks("characters", (b"12345678" * 3, b"", b"87654321"))
    store = SqliteStore(path)
    store.record([Sighting(COHORT, "m", Reference("o-1", blocks, "r", None, 7), "o-1", None, 1.0)])
    loaded = store.load(COHORT)
    assert loaded is not None
    assert loaded.reference == Reference("o-1", blocks, "r", None, 7)
    store.close()


VERSION_1 = """
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
INSERT INTO cohorts VALUES (1, 'k', 'isolated', 'p-1', 'm', 'o-1', 'tokens:3132', 'r', 1, NULL, 4, 1, 5.0, 9.0);
INSERT INTO outputs VALUES (1, 'o-1', 5, 5.0, 8.0), (1, 'o-2', 1, 9.0, 9.0);
PRAGMA user_version = 1;
"""

VERSION_2 = VERSION_1.replace(
    "PRAGMA user_version = 1;",
    """
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
INSERT INTO runs VALUES (3, 'day', 1, 'o-1', 'r-3', 5.0), (4, 'night', 1, 'o-1', 'r-4', 6.0),
                        (7, 'day', 1, 'o-2', 'r-7', 9.0);
PRAGMA user_version = 2;
""",
)


def test_a_ledger_of_the_first_version_is_taken_over(path: Path) -> None:
    """What it holds is still there, and what came with later versions works in it; a second opening changes nothing."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID};{VERSION_1}")
    connection.close()
    old, new = CohortId("k", "isolated", "p-1"), sighting(1)
    store = SqliteStore(path)
    store.record([new._replace(specimen=Specimen(new.output, "r-1", "r", 10.0), run="night", at=10.0)])
    store.close()
    store = SqliteStore(path)
    loaded = store.load(old)
    assert loaded is not None
    assert loaded.reference == Reference("o-1", Blocks("tokens", (b"12",)), "r", 1, None)
    assert (loaded.counts.outputs, loaded.counts.matched, loaded.counts.diverged) == ({"o-1": 5, "o-2": 1}, 4, 1)
    assert [each.id for each in store.cohorts(limit=9)] == [new.cohort, old]
    assert store.specimens(old) == []
    assert len(store.specimens(new.cohort)) == 1
    assert store.runs(limit=9) == [("night", 1)]
    assert not list(path.parent.glob("*damaged*"))
    store.close()


def test_runs_of_a_ledger_of_the_second_version_are_listed(path: Path) -> None:
    """Those that it holds, and what comes to them and goes from them later."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID};{VERSION_2}")
    connection.close()
    store = SqliteStore(path, Retention(run_answers=2))
    assert store.runs(limit=9) == [("day", 2), ("night", 1)]
    store.record([sighting(1)._replace(run="night", at=10.0)])
    assert store.runs(limit=9) == [("night", 2), ("day", 2)]
    assert store.prune(10.0) == 2
    assert store.runs(limit=9) == [("night", 1), ("day", 1)]
    store.close()


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_every_way_to_the_present_schema_gives_the_same(path: Path, version: str) -> None:
    """A ledger that was taken over has the tables of one that begins now."""
    path.parent.mkdir()
    older = path.with_name("older")
    connection = sqlite3.connect(older)
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID};{version}")
    connection.close()
    for each in (older, path):
        SqliteStore(each).close()
    assert schema(older) == schema(path)
    assert "specimens" in schema(path)


def test_a_number_that_no_column_holds_is_a_store_error(path: Path) -> None:
    """An engine may say anything; what does not fit into 64 bits fails as the store, and takes nothing else along."""
    store = SqliteStore(path)
    wide = sighting(1)
    with pytest.raises(StoreError, match="too large"):
        store.record([sighting(), wide._replace(reference=replace(wide.reference, cached_tokens=2**63))])
    assert store.load(COHORT) is None
    store.record([sighting()])
    assert store.load(COHORT) is not None
    store.close()


def schema(path: Path) -> dict[str, str]:
    """The statements that made a ledger, by name."""
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT name, sql FROM sqlite_schema"))
    connection.close()
    return found
