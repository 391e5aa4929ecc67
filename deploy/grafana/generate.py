"""Writes the Grafana dashboards, or with ``--check`` says whether the files are what the code makes.

``python deploy/grafana/generate.py [--check]``, in the environment of the tests.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    # A script finds modules beside itself only; ours are in deploy/ and at the top.
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from grafana.boards.cost import cost
from grafana.boards.divergence import divergence
from grafana.boards.replicas import replicas
from grafana.boards.traffic import traffic

BOARDS: Final = (divergence, cost, traffic, replicas)
FOLDER: Final = Path(__file__).resolve().parent / "dashboards"


def main(arguments: Sequence[str]) -> int:
    """Write or check the files. Returns 1 where a checked file differs, is missing, or belongs to no dashboard."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards from code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not what the code makes")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    chosen = parser.parse_args(arguments)
    files = {f"{board.slug}.json": board.json() for board in (make() for make in BOARDS)}
    if not chosen.check:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (chosen.folder / name).write_text(content, encoding="utf-8")
        return 0
    found = {path.name: path.read_text(encoding="utf-8") for path in chosen.folder.glob("*.json")}
    wrong = sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))
    for name in wrong:
        print(f"{name} is not what the code makes: run python deploy/grafana/generate.py", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
