"""Small enough to read: the caps that keep every module on a few screens and the request's way on one."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "deploy").rglob("*.py")])
MODULE_CAP = 400
FUNCTION_CAP = 40
REQUEST_PATH = ("app/gateway.py", "app/api/inference.py")


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_fits_into_a_reader(module: Path) -> None:
    """No module has more than 400 lines."""
    assert len(module.read_text().splitlines()) <= MODULE_CAP


@pytest.mark.parametrize("name", REQUEST_PATH)
def test_a_request_fits_on_a_screen(name: str) -> None:
    """No function on a request's way has more than 40 lines, its docstring included."""
    functions = [
        node
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert functions
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert not {function: length for function, length in lengths.items() if length > FUNCTION_CAP}


def test_no_module_has_a_name_that_means_anything() -> None:
    """A module called ``utils``, ``helpers``, ``common`` or ``manager`` attracts what has no home."""
    assert not [path for path in MODULES if {"utils", "helpers", "common", "manager"} & set(path.with_suffix("").parts)]
