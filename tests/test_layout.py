"""The rooms: imports point one way, the link is the breaker, the wheel holds what it should."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "eaimw"

# Each room may import those of the lines above its own, and its own line's.
LEVELS = (
    {"errors", "codes", "kernel"},
    {"bounds"},
    {"policy"},
    {"model", "config"},
    {"toml_file"},
    {"hub_file"},
    {"differences", "sense"},
    {"ports", "wire", "figures"},
    {"verdict"},
    {"circuit"},
    {"replies", "target"},
    {"layers"},
    {"retry"},
    {"stack"},
    {"hub"},
    {"adapters"},
    {"app"},
    {"sim"},
    {"grade"},
    {"cli"},
)
KNOW_THE_HUB = {
    "world.py",
    "record.py",
    "stage.py",
    "tap.py",
    "play.py",
    "scenario.py",
    "expectations.py",
    "results.py",
    "plot.py",
    "invariants.py",
    "aftermath.py",
    "attempts.py",
    "bounds.py",
    "rough.py",
    "policies.py",
    "isolation.py",
}
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py" and file.name != "checkout.py")


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(file: Path) -> set[str]:
    """The modules that a file names in its imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_one_way(file: Path) -> None:
    """A room imports nothing of the rooms that are built upon it."""
    own = LEVEL[room_of(file)]
    for name in imports_of(file):
        parts = name.split(".")
        assert parts[0] not in ("breaker", "fixtures"), name
        if parts[0] == "eaimw" and parts[1] in LEVEL:
            assert LEVEL[parts[1]] <= own, f"{file.name} imports {name}"


@pytest.mark.parametrize("file", sorted((PACKAGE / "kernel").glob("*.py")), ids=lambda file: file.name)
def test_the_kernel_is_the_standard_library_alone(file: Path) -> None:
    """No I/O, no event loop, no logging, nothing of ours, nothing foreign."""
    for name in imports_of(file):
        top = name.split(".")[0]
        if name.startswith("eaimw.kernel."):
            continue
        assert top in sys.stdlib_module_names
        assert top not in {"asyncio", "logging", "socket", "os", "io", "random", "datetime", "selectors", "subprocess"}


@pytest.mark.parametrize("room", ["sim", "grade"])
def test_what_checks_the_hub_is_independent_of_it(room: str) -> None:
    """The simulated targets and the grader share no code with the hub that could hide a fault of both.

    Those of `KNOW_THE_HUB` alone do: they put the one into the other, and judge it by what it promises. So do the
    studies, which are about the hub. `policy` is the record of what was asked for, and decides nothing.
    """
    for file in (PACKAGE / room).rglob("*.py"):
        if room == "sim" and (file.name in KNOW_THE_HUB or file.parent.name == "studies"):
            continue
        ours = {name.split(".")[1] for name in imports_of(file) if name.startswith("eaimw.")}
        assert ours <= {"sim", "grade", "checkout", "policy"}, file


def test_the_link_is_the_breaker() -> None:
    """One file, two addresses: eaimw/kernel/breaker.py leads to breaker/breaker.py (an unpacker may have lost it)."""
    link = PACKAGE / "kernel" / "breaker.py"
    assert link.is_symlink(), "the symbolic link was lost in unpacking; clone with git"
    assert link.readlink() == Path("../../breaker/breaker.py")
    assert link.resolve() == (ROOT / "breaker" / "breaker.py").resolve()


def test_the_wheel_holds_the_package_alone(tmp_path: Path) -> None:
    """Its top level is `eaimw`, and the breaker in it is the file, not a link."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"eaimw"}
        assert archive.read("eaimw/kernel/breaker.py") == (ROOT / "breaker" / "breaker.py").read_bytes()
        assert "eaimw/py.typed" in archive.namelist()


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    """What is in the repository works anywhere."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.split("\0")
    assert len(tracked) > 20
    for name in filter(None, tracked):
        file = ROOT / name
        if file.is_file() and file.suffix in {".py", ".md", ".toml", ".sh", ""}:
            text = file.read_text(encoding="utf-8")
            for word in ("pypi." + "org", "/" + "work/", "/" + "root/"):
                assert word not in text, (name, word)
