"""The tables of the SQLite store, every version of them, and the statements that it runs over them."""

from dataclasses import fields
from typing import Final

from app.observation.store import Specimen

SCHEMA_VERSION: Final = 3
APPLICATION_ID: Final = 0x52505253
"""``RPRS``: tells our file from any other SQLite file."""

_FIRST: Final = """
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

# One label can have all answers, and each answer a label of its own: either makes a list out of `runs` itself slow.
_THIRD: Final = """
CREATE TABLE run_labels (
    label TEXT PRIMARY KEY, answers INTEGER NOT NULL, latest INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX run_labels_by_latest ON run_labels (latest);
INSERT INTO run_labels SELECT label, count(*), max(id) FROM runs GROUP BY label;
CREATE TRIGGER run_answered AFTER INSERT ON runs BEGIN
    INSERT INTO run_labels VALUES (new.label, 1, new.id)
    ON CONFLICT (label) DO UPDATE SET answers = answers + 1, latest = new.id;
END;
CREATE TRIGGER run_answer_forgotten AFTER DELETE ON runs BEGIN
    UPDATE run_labels SET answers = answers - 1 WHERE label = old.label;
    DELETE FROM run_labels WHERE label = old.label AND answers = 0;
    UPDATE run_labels SET latest = (SELECT max(id) FROM runs WHERE label = old.label)
    WHERE label = old.label AND latest = old.id;
END;
"""

SCHEMAS: Final = (_FIRST, _SECOND, _THIRD)
"""What each version added to the one before."""

LOAD: Final = """
SELECT id, model, reference_digest, reference_blocks, reference_replica, reference_peak, reference_cached,
       matched, diverged, first_seen, last_seen
FROM cohorts WHERE key = ? AND mode = ? AND posture = ?
"""

ADD_COHORT: Final = """
INSERT INTO cohorts (key, mode, posture, model, reference_digest, reference_blocks, reference_replica,
                     reference_peak, reference_cached, matched, diverged, first_seen, last_seen)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key, mode, posture) DO UPDATE SET
    matched = matched + excluded.matched, diverged = diverged + excluded.diverged,
    last_seen = max(last_seen, excluded.last_seen)
RETURNING id, reference_digest, reference_blocks, reference_replica, reference_peak, reference_cached
"""

ADD_OUTPUT: Final = """
INSERT INTO outputs (cohort, digest, seen, first_seen, last_seen) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (cohort, digest) DO UPDATE SET seen = seen + excluded.seen, last_seen = max(last_seen, excluded.last_seen)
"""

ADD_VERDICTS: Final = "UPDATE cohorts SET matched = matched + ?, diverged = diverged + ? WHERE id = ?"

_MEMBERS: Final = tuple(field.name for field in fields(Specimen))
ADD_SPECIMEN: Final = (
    f"INSERT INTO specimens (cohort, {', '.join(_MEMBERS)}) "  # noqa: S608 - the names of our own fields
    f"VALUES (?, {', '.join('?' * len(_MEMBERS))}) ON CONFLICT DO NOTHING"
)
SPECIMENS: Final = (
    f"SELECT {', '.join('specimens.' + name for name in _MEMBERS)}, seen FROM specimens "  # noqa: S608 - as above
    "JOIN outputs USING (cohort, digest) JOIN cohorts ON cohorts.id = specimens.cohort "
    "WHERE key = ? AND mode = ? AND posture = ? ORDER BY at"
)
ADD_RUN: Final = "INSERT INTO runs (label, cohort, digest, request_id, at) VALUES (?, ?, ?, ?, ?)"
RUN: Final = """
SELECT runs.id, key, mode, posture, runs.digest, runs.request_id, runs.at, text
FROM runs JOIN cohorts ON cohorts.id = runs.cohort
LEFT JOIN specimens ON specimens.cohort = runs.cohort AND specimens.digest = runs.digest
WHERE label = ? AND runs.id > ? ORDER BY runs.id LIMIT ?
"""
COHORTS: Final = """
SELECT key, mode, posture, model, (SELECT sum(seen) FROM outputs WHERE cohort = id), matched, diverged,
       (SELECT count(*) FROM outputs WHERE cohort = id), first_seen, last_seen, reference_peak,
       (SELECT json_group_array(DISTINCT origin) FROM specimens WHERE cohort = id)
FROM cohorts WHERE last_seen < ? AND (? IS NULL OR mode = ?) AND diverged >= ? ORDER BY last_seen DESC LIMIT ?
"""

RUNS: Final = "SELECT label, answers FROM run_labels ORDER BY latest DESC LIMIT ?"

FORGET_RUN_ANSWERS: Final = "DELETE FROM runs WHERE id IN (SELECT id FROM runs ORDER BY id LIMIT ?)"
"""How many of the oldest. Numbers grow with time, so no index by time is needed."""

FORGET_RUN_ANSWERS_OF_COHORTS: Final = """
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs WHERE cohort IN (SELECT id FROM cohorts ORDER BY last_seen LIMIT ?) LIMIT ?
)
"""
"""Of how many cohorts, those longest unseen; and how many answers at most."""

FORGET_COHORTS: Final = """
DELETE FROM cohorts WHERE id IN (SELECT id FROM cohorts ORDER BY last_seen LIMIT ?)
                          AND NOT EXISTS (SELECT 1 FROM runs WHERE cohort = cohorts.id)
"""

RUN_ANSWER_TEXTS: Final = """
SELECT avg(2 * length(label) + length(digest) + length(request_id)), avg(length(label)) FROM (
    SELECT * FROM (SELECT label, digest, request_id FROM runs ORDER BY id LIMIT 100)
    UNION ALL
    SELECT * FROM (SELECT label, digest, request_id FROM runs ORDER BY id DESC LIMIT 100)
)
"""
"""How many characters an answer of a run has, its label's second place in the index included, and how many its label.

None without answers.
"""

RUN_LABELS: Final = "SELECT count(*) FROM run_labels"

RUN_ANSWER_BYTES: Final = 60
"""What an answer of a run takes beside these, in the table and in both of its indexes."""

RUN_LABEL_BYTES: Final = 40
"""What a label takes beside its text, which stands in the table of labels and in its index."""
