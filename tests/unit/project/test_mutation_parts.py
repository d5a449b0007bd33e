"""What `make mutants` changes, and the tests that it runs, exist."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = runpy.run_path(str(ROOT / "tests/mutation/parts.py"))["PARTS"]


@pytest.mark.parametrize("name", PARTS)
def test_part_names_files_and_tests_that_exist(name: str) -> None:
    part = PARTS[name]
    assert part.files and part.tests
    for pattern in part.files:
        found = [
            path for folder in ("clients", "export", "serving") for path in (ROOT / folder).glob(pattern)
        ]
        assert found, pattern
    found_tests = {path.stem for path in (ROOT / "tests/unit").glob("*/test_*.py")}
    assert {f"test_{each}" for each in part.tests} <= found_tests
