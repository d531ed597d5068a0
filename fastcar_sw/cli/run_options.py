"""The options of every command that runs an image, and what they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer

from fastcar_hw.config import AcceleratorConfig

from ..driver import check_request
from ..engines.link import MemorySettings
from ..gates import DEFINITIONS, GateSettings
from ..image import Image
from ..sampling import SamplingSettings
from .common import JsonOption, OutOption, SeedOption, UsageError, accelerator_of
from .prompts import load_tokens

__all__ = ["ENGINES", "RunOptions", "RunRequest", "takes_run_options"]

ENGINES = ("verilator", "pysim", "twin")
#: Gates that need nothing but options.
_GATES = ("never", "always", "tas")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options as they were given; `request` makes sense of them."""

    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="Image of a model (.fcar).")]
    config: Annotated[
        str | None, typer.Option(help="Hardware to run on: preset or TOML file; the image's own when missing.")
    ] = None
    engine: Annotated[str, typer.Option(help=f"What runs it: {', '.join(ENGINES)}.")] = "verilator"
    prompt: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Tokens (lanes, positions), .npy or .json; a random frame when missing."),
    ] = None
    frames: Annotated[
        int | None, typer.Option(min=1, help="Frames of the video, prompt included; one more than the prompt's.")
    ] = None
    gate: Annotated[str, typer.Option(help=f"Replay policy: {', '.join(_GATES)}.")] = "never"
    threshold: Annotated[
        list[float] | None, typer.Option(help="Of the gate tas; given once, or once a layer.")
    ] = None
    definition: Annotated[str, typer.Option(help=f"Score of the gate tas: {', '.join(DEFINITIONS)}.")] = "paper"
    warmup: Annotated[int, typer.Option(help="Frames after the prompt that always compute.")] = 0
    topk: Annotated[int, typer.Option(help="Candidates of the sampler; 0 takes the best.")] = 0
    temperature: Annotated[float, typer.Option(help="Of the sampler.")] = 1.0
    latency: Annotated[int, typer.Option(help="Cycles from a read request to its first beat.")] = 32
    bandwidth: Annotated[float, typer.Option(help="Beats a cycle that the memory delivers, at most 1.")] = 1.0
    stall: Annotated[float, typer.Option(help="Probability that a memory channel pauses in a cycle.")] = 0.0
    vcd: Annotated[Path | None, typer.Option(metavar="FILE", help="Waveforms, of the engine pysim.")] = None
    out: OutOption = Path("fastcar-run")
    json_file: JsonOption = None
    seed: SeedOption = 0

    def request(self, engines: tuple[str, ...] = ENGINES) -> RunRequest:
        """Read the files and check everything that can be checked before something runs.

        Raises
        ------
        ConfigError, GateError, ImageError, RequestError, SamplingError, UsageError
            When something does not fit.
        """
        if self.engine not in engines:
            raise UsageError(f"--engine must be one of {', '.join(engines)}, not {self.engine!r}")
        if self.vcd is not None and self.engine != "pysim":
            raise UsageError(f"--vcd needs the engine pysim, not {self.engine}")
        gate = self._gate()
        sampling = SamplingSettings(topk=self.topk, temperature=self.temperature, seed=self.seed)
        memory = MemorySettings(
            latency=self.latency, beats_per_cycle=self.bandwidth, stall=self.stall, seed=self.seed
        )  # fmt: skip
        image = Image.load(self.image)
        config = image.accelerator
        if self.config is not None:
            config, _ = accelerator_of(self.config)
            image.check(config)
        # Raises when there is not one threshold a layer.
        gate.integer_thresholds(image.model)
        prompt = self._prompt(image, config)
        total = self._total(image, prompt.shape[1])
        check_request(image, config, prompt, total, sampling)
        return RunRequest(image, config, prompt, total, gate, sampling, memory)

    def _gate(self) -> GateSettings:
        if self.gate not in _GATES:
            raise UsageError(f"--gate must be one of {', '.join(_GATES)}, not {self.gate!r}")
        given = self.threshold or []
        if given and self.gate != "tas":
            raise UsageError(f"--threshold needs the gate tas, not {self.gate}")
        threshold = tuple(given) if len(given) > 1 else given[0] if given else 0.0
        return GateSettings(
            kind=self.gate, threshold=threshold, definition=self.definition, warmup_frames=self.warmup
        )  # fmt: skip

    def _prompt(self, image: Image, config: AcceleratorConfig) -> np.ndarray:
        model = image.model
        if self.prompt is None:
            rng = np.random.default_rng(self.seed)
            return rng.integers(0, model.vocab, (config.lanes, model.tokens_per_frame))
        tokens = load_tokens(self.prompt, model.vocab)
        if tokens.shape[0] > config.lanes:
            raise UsageError(f"prompt {self.prompt} must have 1..{config.lanes} lanes, not {tokens.shape[0]}")
        if tokens.shape[1] > model.max_seq:
            raise UsageError(
                f"prompt {self.prompt} must have at most {model.max_seq} positions (the KV cache), "
                f"not {tokens.shape[1]}"
            )
        return tokens

    def _total(self, image: Image, given: int) -> int:
        model = image.model
        frames = min(model.frames, given // model.tokens_per_frame + 1) if self.frames is None else self.frames
        if frames > model.frames:
            raise UsageError(f"--frames must be in 1..{model.frames} (the KV cache), not {frames}")
        if given > frames * model.tokens_per_frame:
            raise UsageError(
                f"prompt must have at most --frames {frames} x {model.tokens_per_frame} positions, not {given}"
            )
        return frames * model.tokens_per_frame


@dataclass(frozen=True, eq=False)
class RunRequest:
    """A run that fits: image and hardware, prompt (lanes, positions), positions in total, policies, memory."""

    image: Image
    config: AcceleratorConfig
    prompt: np.ndarray
    total: int
    gate: GateSettings
    sampling: SamplingSettings
    memory: MemorySettings

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies the run, as plain values."""
        return {
            "model": self.image.model.name,
            "model_hash": f"{self.image.model_hash:016x}",
            "accelerator": self.config.name,
            "hardware": f"{self.config.hash:016x}",
            "lanes": self.prompt.shape[0],
            "prompt_positions": self.prompt.shape[1],
            "positions": self.total,
            "gate": {
                "kind": self.gate.kind,
                "threshold": self.gate.threshold if self.gate.kind == "tas" else None,
                "definition": self.gate.definition,
                "warmup_frames": self.gate.warmup_frames,
            },
            "sampling": {
                "topk": self.sampling.topk,
                "temperature": self.sampling.temperature,
                "seed": self.sampling.seed,
            },
            "memory": {
                "latency": self.memory.latency,
                "beats_per_cycle": self.memory.beats_per_cycle,
                "stall": self.memory.stall,
                "seed": self.memory.seed,
            },
        }


def takes_run_options(command: Callable[[RunOptions], None]) -> Callable[..., None]:
    """Turn a function of `RunOptions` into one whose parameters are the fields, which is what typer reads."""

    def spread(**values: Any) -> None:
        command(RunOptions(**values))

    hints = get_type_hints(RunOptions, include_extras=True)
    spread.__name__, spread.__doc__, spread.__annotations__ = command.__name__, command.__doc__, {}
    spread.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name],
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
            )
            for field in fields(RunOptions)
        ]
    )  # fmt: skip
    return spread
