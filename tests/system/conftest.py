"""Whole videos on an engine, and the twin beside it."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from fastcar_hw.presets import accelerator_preset, model_preset
from fastcar_sw.driver import Driver, memory_needed
from fastcar_sw.engines.link import MemorySettings
from fastcar_sw.engines.pysim import PysimLink
from fastcar_sw.engines.verilator import VerilatorLink
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import compile_image
from fastcar_sw.quantize import quantize, random_model
from fastcar_sw.sampling import SamplingSettings
from fastcar_sw.twin import Twin

ENGINES = {"verilator": VerilatorLink, "pysim": PysimLink}
MAX_CYCLES = 1_000_000
PROMPT = 5


@cache
def compiled(accelerator, model_name, seed=1):
    config = accelerator_preset(accelerator).replace(trace=True)
    model = quantize(model_preset(model_name), random_model(model_preset(model_name), seed))
    image, layout = compile_image(model, config)
    return config, model, image, layout


@dataclass(kw_only=True)
class Video:
    """A video to generate; `hardware` and `twin` do it."""

    accelerator: str = "test"
    model: str = "test"
    lanes: int = 1
    prompt: int = PROMPT
    total: int = 7
    gate: GateSettings = GateSettings(kind="never")
    sampling: SamplingSettings = SamplingSettings()
    head_all: bool = False
    forced: np.ndarray | None = None
    memory: MemorySettings = MemorySettings()
    engine: str = "verilator"
    static_map: bool = False
    seed: int = 0

    @property
    def parts(self):
        return compiled(self.accelerator, self.model)

    @property
    def tokens(self):
        print(f"seed {self.seed}")
        vocab = self.parts[1].config.vocab
        return np.random.default_rng(self.seed).integers(0, vocab, (self.lanes, self.prompt))

    def link(self):
        config, _, image, _ = self.parts
        return ENGINES[self.engine](config, memory_needed(image), self.memory)

    def hardware(self, image=None, link=None):
        with link or self.link() as opened:
            driver = Driver(opened)
            driver.load(image or self.parts[2])
            return driver.generate(
                self.tokens, self.total, self.gate, self.sampling, forced=self.forced, head_all=self.head_all,
                static_map=self.static_map, max_cycles=MAX_CYCLES,
            )  # fmt: skip

    def twin(self):
        forced = None if self.forced is None else torch.tensor(self.forced)
        return Twin(self.parts[1], self.lanes).generate(
            torch.tensor(self.tokens), self.total, self.gate, self.sampling, trace=True, forced=forced,
            head_all=self.head_all,
        )  # fmt: skip


@pytest.fixture
def video():
    """Return the class of videos (the tests' folder is no package)."""
    return Video
