"""What the studio's scripts compute, in Node.js: rules of fields, similarity of frames, time that is left."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

ASSETS = Path(str(files("slipway_gateway.studio") / "assets"))
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the scripts that Node.js takes for modules."""
    copy = Path(shutil.copytree(ASSETS, tmp_path_factory.mktemp("studio") / "assets"))
    (copy / "package.json").write_text('{"type": "module"}')
    return copy


def computed(modules: Path, imports: str, expression: str) -> Any:
    """Return the JSON value of an expression."""
    script = f"{imports}; process.stdout.write(JSON.stringify({expression}));"
    command = ["node", "--input-type=module", "--eval", script]
    ran = subprocess.run(command, cwd=modules, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ({"type": "integer", "rule": "1 to 100"}, {"low": 1, "high": 100, "step": 1, "base": 0}),
        ({"type": "number", "rule": "0.001 to 1000"}, {"low": 0.001, "high": 1000, "step": 0, "base": 0}),
        (
            {"type": "integer", "rule": "a multiple of 16 above 0", "minimum": 32, "maximum": 64},
            {"low": 32, "high": 64, "step": 16, "base": 0},
        ),
        ({"type": "integer", "rule": "a multiple of 16 above 0"}, {"low": 16, "step": 16, "base": 0}),
        ({"type": "integer", "rule": "4k+1 and at least 1"}, {"low": 1, "step": 4, "base": 1}),
        ({"type": "number", "rule": "finite and at least 0"}, {"low": 0, "step": 0, "base": 0}),
        ({"type": "number", "rule": "a prime number, please"}, {"step": 0, "base": 0}),
    ],
    ids=lambda value: str(value.get("rule", "")),
)
def test_limits_of_a_field_follow_from_its_rule(
    modules: Path, field: dict[str, Any], limits: dict[str, Any]
) -> None:
    imports = 'import { limitsOf } from "./elements/rule.js"'
    assert computed(modules, imports, f"limitsOf({json.dumps(field)})") == limits


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ({"low": 32, "high": 64, "step": 16, "base": 0}, [32, 48, 64]),
        ({"low": 5, "high": 17, "step": 4, "base": 1}, [5, 9, 13, 17]),
        ({"low": 1, "high": 100, "step": 1, "base": 0}, []),
        ({"low": 0, "high": 1, "step": 0, "base": 0}, []),
        ({"low": 0, "step": 16, "base": 0}, []),
    ],
)
def test_few_values_are_listed_and_many_are_not(
    modules: Path, rule: dict[str, Any], values: list[int]
) -> None:
    imports = 'import { fewValues } from "./elements/rule.js"'
    assert computed(modules, imports, f"fewValues({json.dumps(rule)}, 12)") == values


def test_similarity_of_frames_is_their_psnr(modules: Path) -> None:
    imports = 'import { psnr_db } from "./views/video/frames.js"'
    frames = "{data: [0, 0, 0, 255, 0, 0, 0, 255]}, {data: [255, 255, 255, 9, 0, 0, 0, 9]}"
    assert computed(modules, imports, f"psnr_db({frames})") == pytest.approx(3.0103, abs=1e-4)
    assert computed(modules, imports, "psnr_db({data: [1, 2, 3, 4]}, {data: [1, 2, 3, 5]}) === Infinity")


def test_time_that_is_left_follows_from_the_last_steps(modules: Path) -> None:
    imports = 'import { timeLeft, duration } from "./views/video/time-left.js"'
    clock = (
        "let now = 0; performance.now = () => now; const left = timeLeft(); const seen = [left.left_s(10)];"
    )
    steps = "for (const step of [0, 1, 2]) { now = 2000 * step; left.add(step); } seen.push(left.left_s(10));"
    later = "now = 5000; seen.push(left.left_s(10)); left.add(0); seen.push(left.left_s(10));"
    found = computed(modules, imports, f"(() => {{ {clock} {steps} {later} return seen; }})()")
    assert found == [None, 16, 15, None]
    texts = computed(modules, imports, "[0.44, 9.96, 42.4, 60, 3725].map(duration)")
    assert texts == ["0.4 s", "10.0 s", "42 s", "1 min 0 s", "1 h 2 min"]


def test_drafts_have_seeds_of_their_own_and_stop_before_the_end(modules: Path) -> None:
    imports = (
        "globalThis.localStorage = undefined; const { draftFields } = await import('./views/video/drafts.js')"
    )
    for steps, stop in ((20, 8), (2, 1), (1, 1)):
        drafts = computed(modules, imports, f"draftFields(7, {steps})")
        assert [draft["seed"] for draft in drafts] == [7, 8, 9, 10]
        assert {draft["stop_after_step"] for draft in drafts} == {stop}


def test_failures_with_the_same_text_are_one_group(modules: Path) -> None:
    imports = 'import { grouped } from "./views/fleet/failures.js"'
    failures = [
        {
            "video_id": f"video_{number}",
            "model": model,
            "at": 10 - number,
            "code": "internal",
            "message": text,
        }
        for number, (model, text) in enumerate([("a", "x"), ("a", "y"), ("a", "x"), ("b", "x")])
    ]
    groups = computed(modules, imports, f"grouped({json.dumps(failures)})")
    found = [(each["model"], each["message"], each["number"], each["newest"]["video_id"]) for each in groups]
    assert found == [("a", "x", 2, "video_0"), ("a", "y", 1, "video_1"), ("b", "x", 1, "video_3")]


def test_words_are_unknown_in_any_case_and_without_their_signs(modules: Path) -> None:
    imports = 'import { unknownWords } from "./elements/known-words.js"'
    known = "new Set(['a', 'red', 'ball'])"
    text = json.dumps("A Red ball, a zebra; Zebra and émigré!")
    assert computed(modules, imports, f"unknownWords({text}, {known})") == ["zebra", "and", "émigré"]
    assert computed(modules, imports, f"unknownWords('', {known})") == []
