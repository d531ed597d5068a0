"""Configuration of model and hardware: one source, checked once.

`ModelConfig` describes the shapes of a decoder, `AcceleratorConfig` the knobs of the hardware, and
`Derived` every number that follows from the latter.  All three are immutable; nothing downstream may
contain a constant that could have been derived here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

__all__ = ["AcceleratorConfig", "ConfigError", "Derived", "ModelConfig", "load_toml"]


class ConfigError(ValueError):
    """A configuration broke a rule; the message names field, value and rule."""


def _require(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise ConfigError(f"{name} must be {rule}, not {value!r}")


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, kw_only=True)
class _Config:
    """What both configurations share: type checks, ``replace``, dictionaries and TOML."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int":
                _require(type(value) is int, f.name, value, "an integer")
            elif f.type == "float":
                ok = isinstance(value, (int, float)) and not isinstance(value, bool)
                _require(ok, f.name, value, "a number")
            elif f.type == "bool":
                _require(isinstance(value, bool), f.name, value, "true or false")
            elif f.type == "str":
                _require(isinstance(value, str) and value != "", f.name, value, "a non-empty string")
        self._validate()

    def _validate(self) -> None:
        raise NotImplementedError

    def _range(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        _require(low <= value <= high, name, value, f"in {low}..{high}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked again."""
        self._known(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def _known(cls, data: dict[str, Any]) -> None:
        if not isinstance(data, dict):
            raise ConfigError(f"{cls.__name__} must be a table of fields, not {data!r}")
        names = {f.name for f in fields(cls)}
        for key in data:
            if key not in names:
                raise ConfigError(f"{cls.__name__} has no field {key!r}; fields are {', '.join(sorted(names))}")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make a configuration from plain values; unknown or missing names are errors."""
        cls._known(data)
        for f in fields(cls):
            if f.name not in data and f.default is dataclasses.MISSING:
                raise ConfigError(f"{cls.__name__} lacks the field {f.name!r}")
        return cls(**data)

    def to_toml(self) -> str:
        """Return the fields as a TOML table body, one line a field."""
        lines = []
        for key, value in self.to_dict().items():
            # TOML takes no surrogates and no bare DEL.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            if isinstance(value, float):
                text = repr(value)
            lines.append(f"{key} = {text}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Config):
    """Shapes of a LLaMA-style decoder over discrete video tokens.

    Parameters
    ----------
    name
        Name shown in reports.
    vocab
        Number of different tokens.
    hidden
        Width of the residual stream.
    layers, heads, kv_heads, head_dim
        Decoder layers, query heads, key/value heads (GQA when fewer) and values a head.
    ffn
        Width of the SwiGLU MLP.
    tokens_per_frame
        Tokens of one frame in raster order (N of the method).
    frames
        Longest video in frames; the cache holds ``frames * tokens_per_frame`` positions.
    rope_theta, norm_eps
        Base of the rotary frequencies; epsilon inside RMSNorm.
    frame_embedding
        Whether a table indexed by the position inside the frame is added to the token embedding.

    Raises
    ------
    ConfigError
        When a field breaks its rule.
    """

    name: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tokens_per_frame: int
    frames: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    frame_embedding: bool = False

    def _validate(self) -> None:
        self._range("vocab", 2, 1 << 17)
        self._range("hidden", 2, 1 << 14)
        self._range("layers", 1, 128)
        self._range("heads", 1, 128)
        self._range("kv_heads", 1, self.heads)
        _require(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of heads={self.heads}")
        self._range("head_dim", 2, 256)
        _require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "even (rotary pairs)")
        self._range("ffn", 2, 1 << 15)
        self._range("tokens_per_frame", 1, 4096)
        self._range("frames", 1, 4096)
        _require(self.rope_theta > 0, "rope_theta", self.rope_theta, "positive")
        _require(0 < self.norm_eps < 1, "norm_eps", self.norm_eps, "between 0 and 1")

    @property
    def max_seq(self) -> int:
        """Positions of the longest video."""
        return self.frames * self.tokens_per_frame

    @property
    def q_dim(self) -> int:
        """Values of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Values of all key (or value) heads."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig(_Config):
    """Knobs of the hardware.

    Parameters
    ----------
    name
        Name shown in reports; not part of the hash.
    cores, rows, cols
        Systolic arrays, rows of each (lanes side by side), columns (output channels a beat).
    lanes
        Sequences decoded in parallel at most, 1 to 32.
    weight_bits
        Width of a stored weight.
    vector_width
        Elements that the vector unit takes a cycle.
    weight_fifo_depth
        Beats that the prefetcher may run ahead.
    address_width, burst_beats, outstanding
        AXI4 address bits, longest INCR burst in beats, read bursts in flight.
    load_queue
        Load descriptors that the prefetcher holds.
    program_words
        Instructions that fit in the sequencer's memory.
    max_hidden, max_ffn, max_layers, max_heads, max_head_dim, max_seq
        Largest model shapes that the buffers hold.
    topk_max
        Longest candidate list of the sampler.
    trace
        Whether the trace ports (simulation only) are generated.

    Raises
    ------
    ConfigError
        When a field breaks its rule.
    """

    name: str
    cores: int = 1
    rows: int = 1
    cols: int = 16
    lanes: int = 1
    weight_bits: int = 8
    vector_width: int = 8
    weight_fifo_depth: int = 512
    address_width: int = 32
    burst_beats: int = 64
    outstanding: int = 8
    load_queue: int = 16
    program_words: int = 1024
    max_hidden: int = 128
    max_ffn: int = 352
    max_layers: int = 4
    max_heads: int = 4
    max_head_dim: int = 32
    max_seq: int = 512
    topk_max: int = 8
    trace: bool = field(default=False)

    def _validate(self) -> None:
        self._range("cores", 1, 32)
        self._range("rows", 1, 32)
        self._range("lanes", 1, 32)
        self._range("cols", 4, 128)
        _require(_is_power_of_two(self.cols), "cols", self.cols, "a power of two")
        _require(self.weight_bits == 8, "weight_bits", self.weight_bits, "8")
        _require(self.cores <= self.lanes, "cores", self.cores, f"at most lanes={self.lanes}")
        _require(
            self.rows <= _ceil_div(self.lanes, self.cores), "rows", self.rows,
            f"at most ceil(lanes/cores)={_ceil_div(self.lanes, self.cores)}",
        )  # fmt: skip
        _require(_is_power_of_two(self.vector_width), "vector_width", self.vector_width, "a power of two")
        _require(
            2 <= self.vector_width <= self.cols // 2, "vector_width", self.vector_width,
            f"in 2..cols/2={self.cols // 2} (a beat carries at least one vector of 16-bit values)",
        )  # fmt: skip
        self._range("address_width", 20, 64)
        _require(_is_power_of_two(self.burst_beats), "burst_beats", self.burst_beats, "a power of two")
        self._range("burst_beats", 1, 256)
        _require(
            self.burst_beats * self.cols <= 4096, "burst_beats", self.burst_beats,
            f"at most 4096/cols={4096 // self.cols} (AXI bursts stay inside 4 KiB)",
        )  # fmt: skip
        self._range("outstanding", 1, 64)
        self._range("load_queue", 2, 64)
        _require(_is_power_of_two(self.program_words), "program_words", self.program_words, "a power of two")
        self._range("program_words", 64, 1 << 14)
        for name in ("max_hidden", "max_ffn", "max_head_dim", "max_seq"):
            value = getattr(self, name)
            _require(value > 0 and value % self.cols == 0, name, value, f"a positive multiple of cols={self.cols}")
        # The largest shapes that a model may have.
        _require(self.max_hidden <= 1 << 14, "max_hidden", self.max_hidden, f"at most {1 << 14}")
        _require(self.max_head_dim <= 256, "max_head_dim", self.max_head_dim, "at most 256")
        _require(self.max_seq <= 1 << 15, "max_seq", self.max_seq, f"at most {1 << 15}")
        _require(self.max_ffn <= 1 << 15, "max_ffn", self.max_ffn, f"at most {1 << 15}")
        self._range("max_layers", 1, 128)
        self._range("max_heads", 1, 124)
        self._range("topk_max", 1, 64)
        _require(_is_power_of_two(self.weight_fifo_depth), "weight_fifo_depth", self.weight_fifo_depth,
                 "a power of two")  # fmt: skip
        least = 2 * self.burst_beats
        if self.derived.passes > 1:
            # A tile that several passes share stays in the FIFO until the last of them has read it.
            least = max(least, self.derived.max_tile_beats + self.burst_beats)
        _require(
            self.weight_fifo_depth >= least, "weight_fifo_depth", self.weight_fifo_depth,
            f"at least {least} for {self.derived.passes} passes a tile",
        )  # fmt: skip

    @cached_property
    def derived(self) -> Derived:
        """All numbers that follow from the knobs."""
        return Derived(self)

    @property
    def hash(self) -> int:
        """64-bit identity of the hardware, burnt into the RTL and stored in every image."""
        data = self.to_dict()
        # The name is a label and the trace ports do not change what an image means.
        del data["name"], data["trace"]
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def check_model(self, model: ModelConfig) -> None:
        """Raise `ConfigError` when this hardware cannot run a model."""
        for name, value, limit in (
            ("hidden", model.hidden, self.max_hidden),
            ("ffn", model.ffn, self.max_ffn),
            ("layers", model.layers, self.max_layers),
            ("heads", model.heads, self.max_heads),
            ("head_dim", model.head_dim, self.max_head_dim),
            ("frames*tokens_per_frame", model.max_seq, self.max_seq),
        ):
            _require(value <= limit, f"model {name}", value, f"at most {limit} on accelerator {self.name!r}")
        for name, value in (
            ("hidden", model.hidden),
            ("ffn", model.ffn),
            ("head_dim", model.head_dim),
            ("vocab", model.vocab),
            ("frames*tokens_per_frame", model.max_seq),
        ):
            _require(value % self.cols == 0, f"model {name}", value, f"a multiple of cols={self.cols}")
        _require(
            model.q_dim <= self.derived.max_vector, "model heads*head_dim", model.q_dim,
            f"at most {self.derived.max_vector}",
        )  # fmt: skip

    @classmethod
    def for_model(cls, model: ModelConfig, **knobs: Any) -> Self:
        """Make a configuration whose buffers hold exactly one model.

        Parameters
        ----------
        model
            The model; its shapes become the ``max_*`` fields.
        knobs
            Any other field; ``name`` defaults to the model's name.
        """
        shapes = {
            "max_hidden": model.hidden,
            "max_ffn": model.ffn,
            "max_layers": model.layers,
            "max_heads": model.heads,
            "max_head_dim": model.head_dim,
            "max_seq": model.max_seq,
        }
        config = cls.from_dict({"name": model.name, **shapes, **knobs})
        config.check_model(model)
        return config


class Derived:
    """Numbers derived from an `AcceleratorConfig`; read-only.

    Attributes
    ----------
    beat_bytes, data_width : int
        Bytes and bits of a memory beat: one weight a column.
    passes : int
        Traversals of a weight tile when every lane computes.
    slots : int
        Activation slots of a core: ``rows * passes``.
    max_vector : int
        Longest activation vector (hidden, query heads or ffn).
    max_k : int
        Longest product: the accumulators hold ``127 * 128 * max_k``.
    acc_width : int
        Bits of a signed accumulator.
    act_depth : int
        Bytes of one activation slot: vector, rotated and raw queries, two banks of probabilities.
    y_words : int
        Words (of ``vector_width`` values) of a lane in the Y memory.
    x_words, s_words, p_words : int
        Words of a lane in X; of one score bank in S; of the parameter buffer P.
    ex_slots : int
        Exponent entries of a lane: two for vectors, two banks of probabilities, queries and raw queries.
    kblock_beats : int
        Largest key block: exponents of V, exponents of K, one beat a channel.
    max_tile_beats : int
        Largest weight tile: two scale beats and one beat a K-step.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        c = config
        self.beat_bytes = c.cols * c.weight_bits // 8
        self.data_width = 8 * self.beat_bytes
        self.passes = _ceil_div(_ceil_div(c.lanes, c.cores), c.rows)
        self.slots = c.rows * self.passes
        self.q_dim = c.max_heads * c.max_head_dim
        self.max_vector = max(c.max_hidden, self.q_dim, c.max_ffn)
        self.max_k = max(self.max_vector, c.max_seq)
        self.acc_width = (127 * 128 * self.max_k).bit_length() + 1
        self.act_depth = self.max_vector + 2 * self.q_dim + 2 * c.max_seq
        y_elements = max(c.max_hidden, 3 * self.q_dim, 2 * c.max_ffn)
        self.y_words = y_elements // c.vector_width
        self.x_words = c.max_hidden // c.vector_width
        self.s_words = c.max_seq // c.vector_width
        self.p_words = (c.max_hidden + c.max_head_dim) // c.vector_width
        self.ex_slots = 4 + 2 * c.max_heads
        self.kblock_beats = c.max_head_dim + 2
        self.max_tile_beats = 2 + self.max_vector
        self.words_per_beat = c.cols // (2 * c.vector_width)
        self.lane_bits = max(1, (c.lanes - 1).bit_length())
        self.core_bits = max(1, (c.cores - 1).bit_length())
        self.slot_bits = max(1, (self.slots - 1).bit_length())


def load_toml(path: Path) -> tuple[ModelConfig | None, AcceleratorConfig | None]:
    """Read ``[model]`` and ``[accelerator]`` tables from a TOML file.

    Raises
    ------
    ConfigError
        When the file is unreadable, is no TOML, or a table breaks a rule.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from None
    unknown = set(data) - {"model", "accelerator"}
    if unknown:
        raise ConfigError(f"configuration file {path} has unknown tables: {', '.join(sorted(unknown))}")
    model = ModelConfig.from_dict(data["model"]) if "model" in data else None
    accelerator = AcceleratorConfig.from_dict(data["accelerator"]) if "accelerator" in data else None
    if model is None and accelerator is None:
        raise ConfigError(f"configuration file {path} has neither a [model] nor an [accelerator] table")
    return model, accelerator
