"""`eaimw check` tells what makes no sense, and how bad it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands import eaimw
from served import ROOT


def checked(folder: Path, text: str, *options: str) -> Any:
    (folder / "hub.toml").write_text(f'[targets.CORE]\nurl = "http://core"\n{text}', encoding="utf-8")
    return eaimw("check", *options, str(folder / "hub.toml"))


def test_warnings_do_not_fail_unless_they_shall(tmp_path: Path) -> None:
    """Two lines each on standard error, with the place of what does not stand in the target's own table."""
    done = checked(tmp_path, "expected_p99 = 0.5\n")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path / 'hub.toml'}: good: CORE; 0 routes; 1 warning\n"
    assert done.stderr == (
        f"{tmp_path / 'hub.toml'}: warning: targets.CORE.timeout = 3.0 (built in): it is 6 times expected_p99 (0.5 s), "
        "so places are kept for what will not come\n    set it to 2 to 5 times that: 1 to 2.5 seconds\n"
    )
    strict = checked(tmp_path, "expected_p99 = 0.5\n", "--strict")
    assert (strict.returncode, strict.stdout) == (1, "")
    assert strict.stderr == f"{done.stderr}{tmp_path / 'hub.toml'}: 1 warning\n"


def test_an_error_fails_and_stands_first(tmp_path: Path) -> None:
    """Exit 1; and a fault of the file is 2 as ever, before sense is asked for."""
    done = checked(tmp_path, "timeout = 0.4\nmin_call = 0.4\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"{tmp_path / 'hub.toml'}: error: targets.CORE.min_call = 0.4: ")
    assert done.stderr.endswith(f"{tmp_path / 'hub.toml'}: 1 error, 1 warning\n")
    bad = checked(tmp_path, "timeout = 0\nmin_call = 0.4\n")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)


def test_what_config_prints_makes_as_much_sense(tmp_path: Path) -> None:
    """With every key of the example written out nothing is found that is not in the example."""
    (tmp_path / "hub.toml").write_text(eaimw("config", str(ROOT / "examples/hub.toml")).stdout, encoding="utf-8")
    done = eaimw("check", "--strict", str(tmp_path / "hub.toml"))
    assert (done.returncode, done.stderr) == (0, "")
