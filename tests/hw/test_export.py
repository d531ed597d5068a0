"""What leaves Python is the same everywhere, and keeps its interface."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fastcar_hw.export import registers as exports
from fastcar_hw.export import to_verilog
from fastcar_hw.presets import ACCELERATORS, accelerator_preset
from fastcar_hw.registers_map import register_map

#: Ports of preset `test`, without and with trace.  After a change of the interface that is meant:
#: REGENERATE=1 python -m pytest tests/hw/test_export.py -k golden
GOLDEN = Path(__file__).parent / "golden" / "fastcar_ports.txt"
CONVERT = (
    "import sys; from fastcar_hw.export import to_verilog; from fastcar_hw.presets import accelerator_preset; "
    "sys.stdout.write(to_verilog(accelerator_preset('test')))"
)


@cache
def verilog(seed):
    """Return the Verilog of preset `test` from a process with other hashes."""
    done = subprocess.run(
        [sys.executable, "-c", CONVERT], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
    )
    return done.stdout.decode()


def ports(text):
    """Return direction, width and name of each port of the top module, sorted by name."""
    body = text[text.index("module fastcar(") :]
    body = body[: body.index("endmodule")]
    found = re.findall(r"^  (input|output) (?:\[(\d+):0\] )?(\w+);$", body, re.MULTILINE)
    return sorted(f"{name} {direction} {int(high or 0) + 1}" for direction, high, name in found)


def test_the_same_configuration_gives_the_same_text():
    assert verilog("0") == verilog("1")


def test_the_text_says_what_it_is_and_not_where_it_came_from():
    text, config = verilog("0"), accelerator_preset("test")
    first = text.splitlines()[0]
    assert first == f"// FastCar accelerator 'test', hardware {config.hash:016x}"
    for stranger in (os.getcwd(), os.path.expanduser("~/"), "site-packages", ".py", "/usr/", "/tmp/"):
        assert stranger not in text
    assert not re.search(r"(?<![\w/*])/[a-zA-Z_][\w.-]*/", text)
    assert not re.search(r"\b(19|20)\d\d-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b|Yosys|Amaranth", text)


def test_the_name_of_a_configuration_cannot_leave_its_comment(monkeypatch):
    monkeypatch.setattr("fastcar_hw.export.verilog.AxiTop", lambda _: None)
    monkeypatch.setattr("fastcar_hw.export.verilog.rtlil.convert", lambda *_, **__: "")
    monkeypatch.setattr("fastcar_hw.export.verilog.run_yosys", lambda _: "/* tool */\nmodule fastcar();\nendmodule\n")
    text = to_verilog(accelerator_preset("test").replace(name="a\nendmodule \\ */ `x"))
    assert text.splitlines()[1] == ""
    assert text.splitlines()[2].startswith("module ")


def test_golden_ports():
    """The interface of the top module, which boards and users rely on."""
    config = accelerator_preset("test")
    plain, traced = ports(verilog("0")), ports(to_verilog(config.replace(trace=True)))
    assert len(plain) == len(set(plain)) > 40
    assert set(plain) <= set(traced)
    extra = sorted(set(traced) - set(plain))
    assert extra and all(line.startswith("trace_") for line in extra)
    text = "\n".join(["# name direction width, preset test", *plain, "# with trace, too", *extra]) + "\n"
    if os.environ.get("REGENERATE"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["test", "test-2x2", "tiny", "vila-u-7b"])
def test_every_export_of_the_registers_tells_the_same(name):
    registers = register_map(ACCELERATORS[name])
    table = json.loads(exports.to_json(registers))
    markdown, header = exports.to_markdown(registers), exports.to_c_header(registers)
    defines = dict(re.findall(r"^#define FASTCAR_(\w+)\s+0x([0-9a-f]{4})u", header, re.MULTILINE))
    for register in table["registers"]:
        assert f"| `{register['name']}` |" in markdown
        suffixes = ("",) if register["words"] == 1 else ("_lo", "_hi")
        for number, suffix in enumerate(suffixes):
            word = f"{register['name']}{suffix}"
            assert int(defines[word.upper()], 16) == register["offset"] + 4 * number
    for array in table["arrays"]:
        assert f"`{array['name']}[n]`" in markdown
        assert f"FASTCAR_{array['name'].upper()}(n)" in header
    # As many cells in every row as its table has columns.
    for block in markdown.strip().split("\n\n"):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("language", ["c99", "c++11"])
def test_the_header_compiles(tmp_path, language):
    registers = register_map(accelerator_preset("test-2x2"))
    header = exports.to_c_header(registers)
    (tmp_path / "fastcar_registers.h").write_text(header, encoding="utf-8")
    names = re.findall(r"^#define (\w+)(\(n\))? ", header, re.MULTILINE)
    uses = [f"  sum += {name}{'(1)' if array else ''};" for name, array in names if not name.endswith("_H")]
    source = tmp_path / ("use.c" if language == "c99" else "use.cc")
    body = "\n".join(uses)
    source.write_text(
        '#include "fastcar_registers.h"\n#include "fastcar_registers.h"\n'
        f"unsigned use(void);\nunsigned use(void) {{\n  unsigned sum = 0;\n{body}\n  return sum;\n}}\n",
        encoding="utf-8",
    )
    command = ["cc", f"-std={language}", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
