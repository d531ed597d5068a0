"""The exported Verilog among AXI models that this project did not write (cocotb, cocotbext-axi), under Verilator."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from cocotb_tools.runner import get_runner

from fastcar_hw.export import to_verilog
from fastcar_hw.presets import MODELS, accelerator_preset
from fastcar_sw.engines.verilator import toolchain
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import compile_image
from fastcar_sw.quantize import quantize, random_model
from fastcar_sw.quantize_ranges import random_tokens
from fastcar_sw.twin import Twin

HERE = Path(__file__).parent
#: What the models want to see and the accelerator does without: transactions in order need no identifiers.
IDENTIFIERS = {"m_axi_awid": "output", "m_axi_arid": "output", "m_axi_bid": "input", "m_axi_rid": "input"}


def wrapper(verilog):
    """Return Verilog of a module with the ports of the export, and identifiers."""
    body = verilog[verilog.index("module fastcar(") :]
    found = re.findall(r"^  (input|output) (?:wire |reg )?(\[\d+:0\] )?(\w+);", body[: body.index("endmodule")], re.M)
    assert len(found) > 40
    ports = [f"{direction} wire {width}{name}" for direction, width, name in found]
    ports += [f"{direction} wire {name}" for name, direction in IDENTIFIERS.items()]
    pins = [f".{name}({name})" for _, _, name in found]
    ends = "".join(f"  assign {name} = 1'b0;\n" for name, direction in IDENTIFIERS.items() if direction == "output")
    return f"module bench_top({', '.join(ports)});\n{ends}  fastcar accelerator({', '.join(pins)});\nendmodule\n"


@pytest.mark.parametrize("preset", ["test"])
def test_the_video_is_the_twins_with_pauses_on_every_channel(preset, tmp_path, monkeypatch):
    config = accelerator_preset(preset)
    model = MODELS["test"]
    quantized = quantize(model, random_model(model, seed=4), random_tokens(model, seed=4))
    image, _ = compile_image(quantized, config)
    image.save(tmp_path / "model.fcar")
    prompt, total, gate = [[3, 1, 4]], 7, {"kind": "tas", "threshold": 0.0}
    job = {"accelerator": preset, "image": str(tmp_path / "model.fcar"), "prompt": prompt, "total": total, "gate": gate,
           "seed": 11, "pause": 0.3, "result": str(tmp_path / "result.json")}  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    verilog = to_verilog(config)
    (tmp_path / "fastcar.v").write_text(verilog)
    (tmp_path / "top.v").write_text(wrapper(verilog))

    root = toolchain.verilator()
    monkeypatch.setenv("VERILATOR_ROOT", str(root))
    monkeypatch.setenv("PATH", os.pathsep.join([str(root / "bin"), os.environ["PATH"]]))
    monkeypatch.syspath_prepend(str(HERE))
    # The makefiles of this Verilator were not configured for a compiler: how it takes a precompiled header.
    monkeypatch.setenv("MAKEFLAGS", "CFG_CXXFLAGS_PCH_I=-include")
    monkeypatch.setenv("FASTCAR_JOB", str(tmp_path / "job.json"))
    runner = get_runner("verilator")
    runner.build(
        sources=[tmp_path / "fastcar.v", tmp_path / "top.v"], hdl_toplevel="bench_top", build_dir=tmp_path / "build",
        build_args=["-Wno-fatal", "-Wno-lint", "-Wno-style", "--output-split", "20000", "--x-assign", "0", "-j", "2",
                    "-Wno-UNOPTFLAT", "--no-timing"],
        always=True,
    )  # fmt: skip
    results = runner.test(
        hdl_toplevel="bench_top", test_module="bench", build_dir=tmp_path / "build", test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
    )  # fmt: skip
    assert "<failure" not in Path(results).read_text() and "<error" not in Path(results).read_text()
    found = json.loads((tmp_path / "result.json").read_text())
    twin = Twin(quantized, 1).generate(torch.tensor(prompt), total, GateSettings(**gate))
    assert found["tokens"] == twin.tokens.tolist()
    assert np.array_equal(found["replayed"], (~twin.compute).sum(0).numpy())
