"""The SDRAM model that whole boards are simulated with: every rule of the data sheet bites."""

import ctypes
import dataclasses
import subprocess

import pytest

from boards.dram import SDRAM_PARTS
from boards.simulation import simulated
from fastcar_sw.engines.verilator import toolchain

#: At this clock tRC would follow from tRAS and tRP.
TIMES = dataclasses.replace(SDRAM_PARTS["W9825G6KH-6"].cycles(133_000_000), rc=12)
NOP, ACTIVATE, READ, WRITE, PRECHARGE, REFRESH, MODE = 7, 3, 5, 4, 2, 1, 0
ALL = 1 << 10

SOURCE = """
#include "sdram_model.h"
extern "C" {
void *model_new() { return new SdramModel({%s}, 13, 9, 2); }
void model_delete(void *m) { delete static_cast<SdramModel *>(m); }
void model_tick(void *m, int code, int ba, int a, int dqm, int dq, int oe) {
    static_cast<SdramModel *>(m)->tick(true, false, code, ba, a, dqm, dq, oe);
}
int model_dq(void *m) { return static_cast<SdramModel *>(m)->dq(); }
const char *model_violation(void *m) { return static_cast<SdramModel *>(m)->violation(); }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    t = TIMES
    values = (t.rcd, t.rp, t.ras, t.rc, t.rrd, t.rfc, t.wr, t.mrd, t.refi, t.power_up, t.cas)
    (folder / "model.cpp").write_text(SOURCE % ", ".join(map(str, values)))
    include = simulated.__file__.rsplit("/", 1)[0]
    subprocess.run([*toolchain.compiler(), "-std=c++17", "-shared", "-fPIC", "-O1", f"-I{include}", "-o",
                    str(folder / "model.so"), str(folder / "model.cpp")], check=True)  # fmt: skip
    library = ctypes.CDLL(str(folder / "model.so"))
    library.model_new.restype = ctypes.c_void_p
    library.model_violation.restype = ctypes.c_char_p
    for name in ("delete", "dq", "violation"):
        getattr(library, f"model_{name}").argtypes = [ctypes.c_void_p]
    library.model_tick.argtypes = [ctypes.c_void_p, *[ctypes.c_int] * 6]
    return library


class Memory:
    def __init__(self, library, boot=True):
        self.library, self.model = library, library.model_new()
        if boot:
            self.wait(TIMES.power_up)
            self.do(PRECHARGE, a=ALL)
            self.wait(TIMES.rp)
            for _ in range(8):
                self.do(REFRESH)
                self.wait(TIMES.rfc - 1)
            self.do(MODE, a=TIMES.cas << 4)
            self.wait(TIMES.mrd)

    def do(self, code, ba=0, a=0, dqm=0, dq=0, oe=0):
        self.library.model_tick(self.model, code, ba, a, dqm, dq, oe)

    def wait(self, cycles):
        for _ in range(cycles):
            self.do(NOP)

    @property
    def violation(self):
        found = self.library.model_violation(self.model)
        return found and found.decode()


def open_row(memory, row=5, bank=0):
    memory.do(ACTIVATE, bank, row)
    memory.wait(TIMES.rcd - 1)


def test_words_come_back_where_and_when_they_should(library):
    memory = Memory(library)
    open_row(memory)
    for column in range(4):
        memory.do(WRITE, 0, column, 0, 0x1111 * (column + 1), 1)
    memory.do(WRITE, 0, 1, 2, 0xABCD, 1)  # the upper byte is masked
    for column in range(4):
        memory.do(READ, 0, column)
        if column >= TIMES.cas - 1:
            assert library.model_dq(memory.model) == [0x1111, 0x22CD, 0x3333, 0x4444][column - TIMES.cas + 1]
    assert memory.violation is None


def broken():
    yield "before the power-up", lambda m: m.do(PRECHARGE, a=ALL), False
    yield "before the mode was set", lambda m: (m.wait(TIMES.power_up), m.do(ACTIVATE, 0, 1)), False
    yield "closed bank", lambda m: m.do(READ, 0, 1), True
    yield "tRCD", lambda m: (m.do(ACTIVATE, 0, 1), m.do(READ, 0, 1)), True
    yield "activate of an open bank", lambda m: (open_row(m), m.wait(20), m.do(ACTIVATE, 0, 2)), True
    yield "tRAS", lambda m: (open_row(m), m.do(PRECHARGE, 0)), True
    yield "tRP", lambda m: (open_row(m), m.wait(20), m.do(PRECHARGE, 0), m.do(ACTIVATE, 0, 2)), True
    yield "tRC", lambda m: (open_row(m), m.wait(TIMES.ras - TIMES.rcd), m.do(PRECHARGE, 0), m.wait(TIMES.rp - 1),
                            m.do(ACTIVATE, 0, 2)), True  # fmt: skip
    yield "tRRD", lambda m: (m.do(ACTIVATE, 0, 1), m.do(ACTIVATE, 1, 1)), True
    yield "tWR", lambda m: (open_row(m), m.wait(20), m.do(WRITE, 0, 1, 0, 1, 1), m.do(PRECHARGE, 0)), True
    yield "during a refresh", lambda m: (m.do(REFRESH), m.do(ACTIVATE, 0, 1)), True
    yield "refresh with an open bank", lambda m: (open_row(m), m.wait(20), m.do(REFRESH)), True
    yield "no refresh", lambda m: m.wait(10 * TIMES.refi), True
    yield "without data", lambda m: (open_row(m), m.do(WRITE, 0, 1)), True
    yield "together", lambda m: (open_row(m), m.do(READ, 0, 1), m.wait(TIMES.cas - 1), m.do(NOP, dq=1, oe=1)), True
    yield "right latency", lambda m: (m.wait(10), m.do(MODE, a=7 << 4)), True


@pytest.mark.parametrize(("rule", "act", "boot"), list(broken()), ids=[rule for rule, _, _ in broken()])
def test_every_rule_bites(library, rule, act, boot):
    memory = Memory(library, boot)
    assert memory.violation is None
    act(memory)
    assert memory.violation is not None and rule in memory.violation
