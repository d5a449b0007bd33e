"""Change the product in small ways, one at a time, and say which changes no test notices: `make mutants`.

The packages of the chosen parts and their tests are copied to out/mutants. mutmut writes the mutants there
and runs, for each of the sampled ones, the tests that reach the changed function. The table gives the score
of each module: the share of mutants with which a test fails or does not end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.stats import status_by_exit_code
from parts import PARTS, Part
from sample import Mutant, sample

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "slipway_client": ROOT / "clients/slipway_client",
    "slipway_export": ROOT / "export/slipway_export",
    "slipway_serving": ROOT / "serving/slipway_serving",
}
# A test that never ends noticed the change as well; "no tests" is a mutant that no unit test reaches.
NOTICED = ("killed", "timeout", "segfault")
MISSED = ("survived", "no tests")
_CONFIGURATION = """[mutmut]
source_paths=
{packages}
only_mutate=
{files}
pytest_add_cli_args_test_selection=
{tests}
process_isolation=fork
use_git_change_detection=false
timeout_constant=10
timeout_multiplier=4
"""


def main() -> int:
    """Run the mutants that the command line asks for and print the table."""
    # What ends this process ends mutmut too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    arguments = _parser().parse_args()
    parts = {name: PARTS[name] for name in arguments.parts}
    workspace = ROOT / "out/mutants"
    _prepare(workspace, parts.values())
    os.chdir(workspace)  # mutmut reads its configuration from there
    chosen = {
        name: sample(
            {path: Path(path).read_text(encoding="utf-8") for path in _files(workspace, part)},
            arguments.mutants,
            f"{arguments.seed}/{name}",
        )
        for name, part in parts.items()
    }
    code = _run([mutant.name for mutants in chosen.values() for mutant in mutants], workspace, arguments)
    verdicts = _verdicts(mutant for mutants in chosen.values() for mutant in mutants)
    _print(chosen, verdicts)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ", ".join(PARTS)
    parser.add_argument(
        "parts", nargs="*", default=list(PARTS), metavar="PART", help=f"of {names}; all if none"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample, an integer")
    parser.add_argument("--mutants", type=int, default=30, help="number of mutants of each part")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit of the whole run")
    parser.add_argument("--processes", type=int, default=2, help="number of mutants tested at a time")
    return parser


def _files(workspace: Path, part: Part) -> list[str]:
    found = {path for pattern in part.files for path in workspace.glob(pattern)}
    return sorted(path.relative_to(workspace).as_posix() for path in found)


def _prepare(workspace: Path, parts: Iterable[Part]) -> None:
    """Copy the packages side by side, so that the path of a file gives the name of its module."""
    shutil.rmtree(workspace, ignore_errors=True)
    # Python looks once whether a folder of its path exists, and mutmut is started before it writes there.
    (workspace / "mutants").mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__")
    for name, folder in PACKAGES.items():
        shutil.copytree(folder, workspace / name, ignore=skip)
    shutil.copytree(ROOT / "tests", workspace / "tests", ignore=skip)
    shutil.copy2(ROOT / "pyproject.toml", workspace)
    parts = list(parts)
    named = {test for part in parts for test in part.tests}
    paths = {path.stem.removeprefix("test_"): path for path in (workspace / "tests/unit").glob("*/test_*.py")}
    if missing := sorted(named - paths.keys()):
        raise FileNotFoundError(f"parts.py names tests that do not exist: {', '.join(missing)}")
    tests = sorted(paths[test].relative_to(workspace).as_posix() for test in named)

    def listed(lines: Iterable[str]) -> str:
        return "\n".join(f"    {line}" for line in lines)

    configuration = _CONFIGURATION.format(
        packages=listed(PACKAGES),
        files=listed(path for part in parts for path in _files(workspace, part)),
        tests=listed(tests),
    )
    (workspace / "setup.cfg").write_text(configuration)


def _run(names: list[str], workspace: Path, arguments: argparse.Namespace) -> int:
    """Let mutmut test the mutants, the quick ones first, until the time is over.

    Returns:
        mutmut's exit status; it is not 0 where a test fails without a change.
    """
    # A process that a test starts takes the changed code as well.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(workspace / "mutants")}
    command = [str(Path(sys.executable).parent / "mutmut"), "run", "--max-children", str(arguments.processes)]
    with (workspace / "mutmut.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *names], env=environment, stdout=log, stderr=log, start_new_session=True
        )
        code = 0
        try:
            code = process.wait(arguments.minutes * 60)
        except subprocess.TimeoutExpired:
            print(
                f"the {arguments.minutes:g} minutes are over; the remaining mutants were not run",
                file=sys.stderr,
            )
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        print(f"mutmut ended with {code}; its output is in {log.name}", file=sys.stderr)
    return code


def _verdicts(mutants: Iterable[Mutant]) -> dict[str, str]:
    """Read what mutmut found for each mutant, by its name."""
    verdicts = {}
    for path in {mutant.path for mutant in mutants}:
        data = SourceFileMutationData(path=path)
        data.load()
        verdicts |= {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
    return verdicts


def _print(chosen: dict[str, list[Mutant]], verdicts: dict[str, str]) -> None:
    row = "{:<44} {:>8} {:>8} {:>9} {:>8} {:>7}"
    print(row.format("module", "mutants", "noticed", "survived", "not run", "score"))
    missed = []
    for name, mutants in chosen.items():
        by_file = {path: [m for m in mutants if m.path == path] for path in sorted({m.path for m in mutants})}
        for label, group in [*by_file.items(), (f"{name}, in all", mutants)]:
            found = [verdicts.get(mutant.name, "not checked") for mutant in group]
            noticed = sum(verdict in NOTICED for verdict in found)
            survived = sum(verdict in MISSED for verdict in found)
            score = f"{noticed / (noticed + survived):.0%}" if noticed + survived else "-"
            rest = len(group) - noticed - survived
            print(row.format(label, len(group), noticed, survived, rest, score))
        missed += [m for m in mutants if verdicts.get(m.name) not in NOTICED]
        print()
    for mutant in missed:
        print(f"{mutant.path}:{mutant.line} {verdicts.get(mutant.name, 'not checked')}\n{mutant.diff}\n")


if __name__ == "__main__":
    sys.exit(main())
