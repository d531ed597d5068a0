"""The quantized model: every integer that the accelerator needs, as arrays and program constants.

What each constant means is in docs/numerics.md; a name in brackets below is its name there.  Files are
safetensors with JSON metadata, never pickles.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fastcar_hw.config import ModelConfig

from .model import ModelError

__all__ = [
    "GATE_FRACTION",
    "LINEARS",
    "NORMS",
    "ROPE_FRACTION",
    "SCORE_FRACTION",
    "QuantizedLayer",
    "QuantizedLinear",
    "QuantizedModel",
    "QuantizedNorm",
    "assemble",
]

#: Fraction bits of scores and TAS (base-2 logarithms), of cos and sin, of the argument of the sigmoid.
SCORE_FRACTION = 12
ROPE_FRACTION = 14
GATE_FRACTION = 11

#: Linear layers and norms of a decoder layer, in the order of their use.
LINEARS = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("attn_norm", "mlp_norm")

#: Scalar constants of a decoder layer.
_SHIFTS = ("score_shift", "context_shift", "gate_shift", "silu_shift", "product_shift")
#: Lowest and highest shift of a matrix product: with every data-dependent exponent it stays inside the clamp.
_MATMUL_SHIFTS = (9, 47)
_FORMAT, _VERSION = "fastcar-quantized", "1"


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantizedLinear:
    """A matrix: ``y[c] = rsat_32(sum_k weight[c][k] act[k] * scale[c], shift - EX)``.

    Parameters
    ----------
    weight
        int8, (out, in), -127..127.
    scale
        uint16, (out,), 1..65535 [ws].
    shift
        One a tensor [s, or sL of the head].
    """

    weight: np.ndarray
    scale: np.ndarray
    shift: int


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantizedNorm:
    """Gains of an RMSNorm.

    Parameters
    ----------
    gain
        int16, (hidden,): gain times sqrt(hidden) [g].
    shift
        One a tensor [sG].
    """

    gain: np.ndarray
    shift: int


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantizedLayer:
    """One decoder layer.

    Parameters
    ----------
    attn_norm, mlp_norm
        Gains in front of attention and MLP.
    query, key, value, output, gate, up, down
        Matrices.  Rows of query and key are permuted to neighbouring rotary pairs; the scales of query
        contain log2(e)/sqrt(head_dim).
    score_shift, context_shift
        Shifts of scores and of the softmax-weighted values [sS, sO].
    gate_shift, silu_shift, product_shift
        Shifts of SwiGLU [s1, s2, s3].
    fractions
        Fraction bits of the tensors, for reports only: ``norm, query, key, value, context, mlp_norm, gate,
        silu, up, hidden, residual``.
    """

    attn_norm: QuantizedNorm
    query: QuantizedLinear
    key: QuantizedLinear
    value: QuantizedLinear
    output: QuantizedLinear
    mlp_norm: QuantizedNorm
    gate: QuantizedLinear
    up: QuantizedLinear
    down: QuantizedLinear
    score_shift: int
    context_shift: int
    gate_shift: int
    silu_shift: int
    product_shift: int
    fractions: Mapping[str, int] = field(default_factory=dict)

    def constants(self) -> dict[str, int]:
        """Return every shift of the layer by name: what a program that loops over the layers must find equal."""
        found = {name: getattr(self, name) for name in _SHIFTS}
        return found | {f"{name}.shift": getattr(self, name).shift for name in (*NORMS, *LINEARS)}


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantizedModel:
    """A decoder in integers.

    Parameters
    ----------
    config
        The shapes.
    embedding
        int16, (vocab, hidden) [E].
    embedding_shift
        -16..0 [sE].
    positions
        int16, (tokens_per_frame, hidden), added by the position in the frame; None without
        ``frame_embedding`` [P].
    position_shift
        -16..0 [sP].
    rope
        int16, (max_seq, head_dim), 14 fraction bits: cos and sin of pair i at 2i and 2i + 1.
    layers
        The decoder layers.
    final_norm, head
        Last norm and the output matrix (vocab, hidden).
    eps, eps_shift
        epsilon of the norms as ``eps << eps_shift``, 32 and 4 bits [E0 = a << eidx].
    residual_fraction, logit_fraction
        Fraction bits of the residual stream and of the logits [FX, FL].
    source
        Hash of the float model, or any other text that says where the model comes from; not part of the hash.

    Raises
    ------
    ModelError
        When an array or a constant breaks a rule of docs/numerics.md.
    """

    config: ModelConfig
    embedding: np.ndarray
    embedding_shift: int
    positions: np.ndarray | None
    position_shift: int
    rope: np.ndarray
    layers: tuple[QuantizedLayer, ...]
    final_norm: QuantizedNorm
    head: QuantizedLinear
    eps: int
    eps_shift: int
    residual_fraction: int
    logit_fraction: int
    source: str = ""

    def __post_init__(self) -> None:
        _check(self)
        for _, array in self.arrays():
            array.flags.writeable = False

    @property
    def e0(self) -> int:
        """Epsilon of the norms, in the square of the residual's unit, summed over the vector [E0]."""
        return self.eps << self.eps_shift

    @property
    def uniform(self) -> bool:
        """Whether all layers have the same constants, so that one piece of program serves them all."""
        return all(layer.constants() == self.layers[0].constants() for layer in self.layers)

    def matrices(self) -> Iterator[tuple[str, QuantizedLinear]]:
        """Yield every matrix with its name, in the order of their use."""
        for number, layer in enumerate(self.layers):
            for name in LINEARS:
                yield f"layers.{number}.{name}", getattr(layer, name)
        yield "head", self.head

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield every array with the name that it has in the file."""
        yield "embedding", self.embedding
        if self.positions is not None:
            yield "positions", self.positions
        yield "rope", self.rope
        for i, layer in enumerate(self.layers):
            for name in NORMS:
                yield f"layers.{i}.{name}.gain", getattr(layer, name).gain
            for name in LINEARS:
                yield f"layers.{i}.{name}.weight", getattr(layer, name).weight
                yield f"layers.{i}.{name}.scale", getattr(layer, name).scale
        yield "final_norm.gain", self.final_norm.gain
        yield "head.weight", self.head.weight
        yield "head.scale", self.head.scale

    def constants(self) -> dict[str, Any]:
        """Return every number that is no array, as plain values."""
        return {
            "embedding_shift": self.embedding_shift,
            "position_shift": self.position_shift,
            "layers": [layer.constants() | {"fractions": dict(layer.fractions)} for layer in self.layers],
            "final_norm.shift": self.final_norm.shift,
            "head.shift": self.head.shift,
            "eps": self.eps,
            "eps_shift": self.eps_shift,
            "residual_fraction": self.residual_fraction,
            "logit_fraction": self.logit_fraction,
        }

    @cached_property
    def hash(self) -> int:
        """64-bit identity of the content: shapes, constants and arrays, but neither name nor source."""
        shapes = self.config.to_dict()
        del shapes["name"]
        digest = hashlib.sha256(json.dumps([shapes, self.constants()], sort_keys=True).encode())
        for name, array in self.arrays():
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return int.from_bytes(digest.digest()[:8], "little")

    def save(self, path: Path) -> None:
        """Write the model as safetensors; raise `ModelError` when the file cannot be written."""
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "config": json.dumps(self.config.to_dict()),
            "constants": json.dumps(self.constants()),
            "source": self.source,
            "hash": f"{self.hash:016x}",
        }
        try:
            # Not `save_file`, which lets nobody but the owner read the file.
            path.write_bytes(save({name: np.ascontiguousarray(a) for name, a in self.arrays()}, metadata=metadata))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"quantized model {path} cannot be written: {error}") from None

    @classmethod
    def load(cls, path: Path) -> QuantizedModel:
        """Read a file that `save` wrote.

        Raises
        ------
        ModelError
            When the file is unreadable, is no quantized model, or its content is not what its hash says.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"quantized model {path} cannot be read: {error}") from None
        if metadata.get("format") != _FORMAT:
            raise ModelError(f"quantized model {path} must have the format {_FORMAT!r}, not {metadata.get('format')!r}")
        if metadata.get("version") != _VERSION:
            raise ModelError(f"quantized model {path} must be of version {_VERSION}, not {metadata.get('version')}")
        try:
            model = assemble(
                ModelConfig.from_dict(json.loads(metadata["config"])), arrays, json.loads(metadata["constants"]),
                metadata.get("source", ""),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ModelError):
                raise ModelError(f"quantized model {path}: {error}") from None
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ModelError(f"quantized model {path} is damaged: {reason}") from None
        if f"{model.hash:016x}" != metadata.get("hash"):
            raise ModelError(f"quantized model {path} is damaged: its content does not have the hash it claims")
        return model


def assemble(
    config: ModelConfig, arrays: Mapping[str, np.ndarray], constants: Mapping[str, Any], source: str = ""
) -> QuantizedModel:
    """Make a model of its shapes, `QuantizedModel.arrays` and `QuantizedModel.constants`.

    Raises
    ------
    KeyError
        When an array or a constant is missing.
    ModelError
        When one breaks a rule.
    """

    def norm(prefix: str, shift: int) -> QuantizedNorm:
        return QuantizedNorm(gain=arrays[f"{prefix}.gain"], shift=shift)

    def linear(prefix: str, shift: int) -> QuantizedLinear:
        return QuantizedLinear(weight=arrays[f"{prefix}.weight"], scale=arrays[f"{prefix}.scale"], shift=shift)

    layers = []
    for i, numbers in enumerate(constants["layers"]):
        parts: dict[str, Any] = {name: norm(f"layers.{i}.{name}", numbers[f"{name}.shift"]) for name in NORMS}
        parts |= {name: linear(f"layers.{i}.{name}", numbers[f"{name}.shift"]) for name in LINEARS}
        parts |= {name: numbers[name] for name in _SHIFTS}
        layers.append(QuantizedLayer(**parts, fractions=numbers["fractions"]))
    plain = ("embedding_shift", "position_shift", "eps", "eps_shift", "residual_fraction", "logit_fraction")
    return QuantizedModel(
        config=config,
        embedding=arrays["embedding"],
        positions=arrays.get("positions"),
        rope=arrays["rope"],
        layers=tuple(layers),
        final_norm=norm("final_norm", constants["final_norm.shift"]),
        head=linear("head", constants["head.shift"]),
        source=source,
        **{name: constants[name] for name in plain},
    )


def _check(model: QuantizedModel) -> None:
    """Raise `ModelError` where the model breaks a rule."""
    c = model.config

    def require(ok: bool, name: str, value: object, rule: str) -> None:
        if not ok:
            raise ModelError(f"{name} must be {rule}, not {value!r}")

    def whole(name: str, value: object, low: int, high: int) -> None:
        require(type(value) is int and low <= value <= high, name, value, f"an integer in {low}..{high}")

    def array(name: str, value: np.ndarray, dtype: str, *shape: int) -> None:
        require(value.dtype == dtype, f"type of {name}", value.dtype.name, dtype)
        require(value.shape == shape, f"shape of {name}", value.shape, str(shape))

    def norm(name: str, value: QuantizedNorm) -> None:
        array(f"{name}.gain", value.gain, "int16", c.hidden)
        whole(f"{name}.shift", value.shift, 0, 47)

    def linear(name: str, value: QuantizedLinear, out: int, width: int) -> None:
        array(f"{name}.weight", value.weight, "int8", out, width)
        array(f"{name}.scale", value.scale, "uint16", out)
        require(int(value.weight.min()) >= -127, f"{name}.weight", int(value.weight.min()), "at least -127")
        require(int(value.scale.min()) >= 1, f"{name}.scale", int(value.scale.min()), "at least 1")
        whole(f"{name}.shift", value.shift, *_MATMUL_SHIFTS)

    array("embedding", model.embedding, "int16", c.vocab, c.hidden)
    whole("embedding_shift", model.embedding_shift, -16, 0)
    require(c.frame_embedding == (model.positions is not None), "positions", model.positions is not None,
            "present exactly with frame_embedding")  # fmt: skip
    if model.positions is not None:
        array("positions", model.positions, "int16", c.tokens_per_frame, c.hidden)
    whole("position_shift", model.position_shift, -16, 0)
    array("rope", model.rope, "int16", c.max_seq, c.head_dim)
    require(len(model.layers) == c.layers, "number of layers", len(model.layers), str(c.layers))
    shapes = {
        "query": (c.q_dim, c.hidden), "key": (c.kv_dim, c.hidden), "value": (c.kv_dim, c.hidden),
        "output": (c.hidden, c.q_dim), "gate": (c.ffn, c.hidden), "up": (c.ffn, c.hidden), "down": (c.hidden, c.ffn),
    }  # fmt: skip
    for i, layer in enumerate(model.layers):
        for name in NORMS:
            norm(f"layers.{i}.{name}", getattr(layer, name))
        for name, shape in shapes.items():
            linear(f"layers.{i}.{name}", getattr(layer, name), *shape)
        for name in ("score_shift", "context_shift"):
            whole(f"layers.{i}.{name}", getattr(layer, name), *_MATMUL_SHIFTS)
        for name in ("gate_shift", "silu_shift", "product_shift"):
            whole(f"layers.{i}.{name}", getattr(layer, name), 0, 47)
    norm("final_norm", model.final_norm)
    linear("head", model.head, c.vocab, c.hidden)
    whole("eps", model.eps, 0, 2**32 - 1)
    whole("eps_shift", model.eps_shift, 0, 8)
    whole("residual_fraction", model.residual_fraction, -64, 64)
    whole("logit_fraction", model.logit_fraction, -64, 64)
