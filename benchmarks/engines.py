"""How fast the engines are: simulated cycles a second, and the twin against the float reference.

    python benchmarks/engines.py

Prints ratios; what the figures are depends on the machine, so no test looks at them.
"""

import time

import numpy as np
import torch

from fastcar_hw.presets import accelerator_preset, model_preset
from fastcar_sw.driver import Driver, memory_needed
from fastcar_sw.engines.pysim import PysimLink
from fastcar_sw.engines.verilator import VerilatorLink
from fastcar_sw.image import compile_image
from fastcar_sw.model import load_model, shipped_model
from fastcar_sw.quantize import quantize, random_model
from fastcar_sw.replay_reference import generate
from fastcar_sw.twin import Twin
from fastcar_sw.video.clips import TrafficClips


def cycles_a_second(link_type: type, accelerator: str, shapes: str, total: int) -> float:
    """Return the speed of an engine, its build not counted."""
    config = accelerator_preset(accelerator).replace(trace=True)
    model = quantize(model_preset(shapes), random_model(model_preset(shapes), 1))
    image, _ = compile_image(model, config)
    prompt = np.random.default_rng(0).integers(0, model.config.vocab, (config.lanes, 2))
    with link_type(config, memory_needed(image)) as link:
        driver = Driver(link)
        driver.load(image)
        start = time.perf_counter()
        run = driver.generate(prompt, total, max_cycles=10**9)
        return run.counters["cycles"] / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    slow = cycles_a_second(PysimLink, "test", "test", 4)
    fast = cycles_a_second(VerilatorLink, "test", "test", 16)
    print(f"test: Amaranth's simulator {slow:,.0f} cycles/s, Verilator {fast:,.0f} cycles/s, ratio {fast / slow:.0f}")
    tiny = cycles_a_second(VerilatorLink, "tiny", "traffic", 24)
    print(f"tiny (64 PEs, with trace): Verilator {tiny:,.0f} cycles/s")

    model = load_model(shipped_model())
    clips = torch.from_numpy(TrafficClips(model.config.frames, seed=1).train(4, 0))
    twin = Twin(quantize(model.config, model.state, clips), 4)
    prompt = clips[:, :64]
    seconds = {}
    for name, step in (
        ("float", lambda: generate(model.decoder(), prompt, 192)),
        ("twin", lambda: twin.generate(prompt, 192)),
    ):
        step()
        start = time.perf_counter()
        step()
        seconds[name] = time.perf_counter() - start
    ratio = seconds["twin"] / seconds["float"]
    print(f"traffic, 4 lanes, 192 positions: twin {seconds['twin']:.2f} s, float {seconds['float']:.2f} s, "
          f"ratio {ratio:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
