"""How much memory is left, by trees of files such as the kernel's."""

from pathlib import Path

import psutil
import pytest

from slipway_export.sizing.memory import available_memory, fits

MIB = 2**20


def group(folder: Path, names: tuple[str, str], limit: str, usage: int, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip((*names, "memory.stat"), (limit, str(usage), stat), strict=True):
        (folder / name).write_text(f"{value}\n")


def group_2(folder: Path, limit: str, usage: int, cache: int = 0) -> None:
    stat = f"anon {usage - cache}\nactive_file {cache // 2}\ninactive_file {cache // 2}"
    group(folder, ("memory.max", "memory.current"), limit, usage, stat)


def group_1(folder: Path, limit: str, usage: int, cache: int = 0) -> None:
    stat = f"inactive_file 1\ntotal_active_file {cache // 2}\ntotal_inactive_file {cache // 2}"
    group(folder, ("memory.limit_in_bytes", "memory.usage_in_bytes"), limit, usage, stat)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def test_available_memory_is_what_the_group_leaves_when_its_limit_is_lower(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/pod/container\n")
    group_2(tmp_path / "pod" / "container", str(48 * MIB), 40 * MIB, cache=10 * MIB)
    group_2(tmp_path / "pod", "max", 40 * MIB)
    assert available_memory(tmp_path, own) == 18 * MIB


def test_available_memory_is_bounded_by_the_group_around_when_that_is_tighter(
    tmp_path: Path, own: Path
) -> None:
    own.write_text("0::/pod/container\n")
    group_2(tmp_path / "pod" / "container", "max", 5 * MIB)
    group_2(tmp_path / "pod", str(16 * MIB), 12 * MIB)
    assert available_memory(tmp_path, own) == 4 * MIB


def test_available_memory_is_none_left_when_the_group_is_over_its_limit(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/pod\n")
    group_2(tmp_path / "pod", str(16 * MIB), 17 * MIB)
    assert available_memory(tmp_path, own) == 0


def test_available_memory_reads_version_1_when_the_host_has_it(tmp_path: Path, own: Path) -> None:
    own.write_text("5:devices:/pod\n4:memory:/pod\n0::/\n")
    group_1(tmp_path / "memory" / "pod", str(32 * MIB), 24 * MIB, cache=4 * MIB)
    group_1(tmp_path / "memory", str(2**63 - 4096), 100 * MIB)
    assert available_memory(tmp_path, own) == 12 * MIB


def test_available_memory_reads_the_mount_when_the_path_is_the_hosts(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/docker/0123\n")
    group_2(tmp_path, str(20 * MIB), 14 * MIB)
    assert available_memory(tmp_path, own) == 6 * MIB


def test_available_memory_is_the_machines_when_there_are_no_groups(tmp_path: Path, own: Path) -> None:
    assert abs(available_memory(tmp_path, own) - psutil.virtual_memory().available) < 4 * 2**30
    assert available_memory(tmp_path, own) > 0


def test_fits_is_what_can_still_be_taken() -> None:
    assert fits(1)
    assert not fits(2**60)
