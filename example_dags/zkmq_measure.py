"""What the census' workers do with a task: measure one Python source file."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def measure(task: Any) -> str:
    """Measure the file whose path is the task's data.

    Returns a JSON object: module (path), lines, functions, imports, longest (name of the longest function) and
    longest_lines. A file that cannot be read or does not parse raises, which fails the task.
    """
    path = Path(task.data.decode())
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, filename=str(path))
    functions = sorted(_functions(tree))
    lines, name = functions[-1] if functions else (0, "")
    return json.dumps(
        {
            "module": str(path),
            "lines": len(text.splitlines()),
            "functions": len(functions),
            "imports": sum(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)),
            "longest": name,
            "longest_lines": lines,
        }
    )


def _functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name
