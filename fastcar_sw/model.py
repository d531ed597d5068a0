"""Models on disk: one safetensors file with weights, tokenizer and configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fastcar_hw.config import ConfigError, ModelConfig

from .reference import Decoder
from .video.tokenizer import PatchTokenizer, TokenizerError

__all__ = ["ModelError", "VideoModel", "load_model", "save_model", "shipped_model", "tensor_shapes"]

#: Keys of the metadata: shapes; grid of the tokenizer; notes of the training.
_CONFIG, _GRID, _TRAINING = "fastcar.config", "fastcar.grid", "fastcar.training"
_CODEBOOK = "tokenizer.codebook"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
#: Constants that some exporters store, and that follow from the configuration.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"


class ModelError(ValueError):
    """A model, or a file of one, broke a rule; the message is one line that says which."""


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by its Hugging Face style name, (out, in) for matrices."""
    c = config
    layer = {
        "input_layernorm": (c.hidden,),
        "self_attn.q_proj": (c.q_dim, c.hidden),
        "self_attn.k_proj": (c.kv_dim, c.hidden),
        "self_attn.v_proj": (c.kv_dim, c.hidden),
        "self_attn.o_proj": (c.hidden, c.q_dim),
        "post_attention_layernorm": (c.hidden,),
        "mlp.gate_proj": (c.ffn, c.hidden),
        "mlp.up_proj": (c.ffn, c.hidden),
        "mlp.down_proj": (c.hidden, c.ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (c.vocab, c.hidden)}
    if c.frame_embedding:
        shapes["model.frame_embed.weight"] = (c.tokens_per_frame, c.hidden)
    for i in range(c.layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (c.hidden,), _HEAD: (c.vocab, c.hidden)}


@dataclass(frozen=True, eq=False, kw_only=True)
class VideoModel:
    """A checked float model.

    Attributes
    ----------
    config
        Shapes.
    state
        float32 tensors by name, all of `tensor_shapes`; a tied head is there, too.
    tokenizer
        What its tokens look like, if the file says so.
    training
        Notes of the training as plain values, empty when there are none.
    """

    config: ModelConfig
    state: dict[str, Tensor]
    tokenizer: PatchTokenizer | None = None
    training: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.config, self.state, self.tokenizer)

    def decoder(self) -> Decoder:
        """Return the float reference with these weights."""
        return Decoder.from_state(self.config, self.state)


def _check(config: ModelConfig, state: Mapping[str, Tensor], tokenizer: PatchTokenizer | None) -> None:
    shapes = tensor_shapes(config)
    for name, shape in shapes.items():
        if name not in state:
            raise ModelError(f"model lacks the tensor {name!r}")
        value = state[name]
        if tuple(value.shape) != shape:
            raise ModelError(f"tensor {name!r} must have the shape {shape}, not {tuple(value.shape)}")
        if value.dtype not in _FLOATS:
            raise ModelError(f"tensor {name!r} must be float32, float16 or bfloat16, not {value.dtype}")
        if not torch.isfinite(value).all():
            raise ModelError(f"tensor {name!r} must be finite, but contains NaN or infinity")
    for name in state:
        if name not in shapes:
            raise ModelError(f"model has the unknown tensor {name!r}")
    if tokenizer is not None:
        if tokenizer.vocab != config.vocab:
            raise ModelError(f"tokenizer must have vocab={config.vocab} entries, not {tokenizer.vocab}")
        if tokenizer.tokens_per_frame != config.tokens_per_frame:
            raise ModelError(
                f"tokenizer must have tokens_per_frame={config.tokens_per_frame}, "
                f"not {tokenizer.tokens_per_frame}"
            )


def save_model(path: Path | str, model: VideoModel) -> None:
    """Write a model; a head that equals the embedding is stored once.

    The file appears as a whole or not at all.

    Raises
    ------
    ModelError
        When the file cannot be written.
    """
    path = Path(path)
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in model.state.items()}
    if torch.equal(tensors[_HEAD], tensors[_EMBEDDING]):
        del tensors[_HEAD]
    # Own memory for each, since the format refuses tensors that share it.
    tensors = {name: value.clone() for name, value in tensors.items()}
    metadata = {_CONFIG: json.dumps(model.config.to_dict()), "format": "pt"}
    if model.training:
        metadata[_TRAINING] = json.dumps(model.training)
    if model.tokenizer is not None:
        tensors[_CODEBOOK] = torch.from_numpy(np.array(model.tokenizer.codebook))
        metadata[_GRID] = json.dumps(model.tokenizer.grid)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_stable(save(tensors, metadata)))
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"model {path} cannot be written: {_line(error)}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _stable(data: bytes) -> bytes:
    """Order the metadata, which the writer of safetensors leaves to chance: equal models, equal bytes."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def load_model(path: Path | str) -> VideoModel:
    """Read a model from a file, or from a folder that contains exactly one safetensors file.

    Raises
    ------
    ModelError
        When there is no such file, it is no safetensors file, no model of this project, or its content
        breaks a rule.
    """
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise ModelError(
                f"model folder {path} must contain exactly one .safetensors file, not {len(found)}"
            )
        path = found[0]
    if not path.is_file():
        raise ModelError(f"model {path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"model {path} is damaged or no safetensors file: {_line(error)}") from None
    try:
        return _assemble(metadata, state)
    except (ModelError, ConfigError, TokenizerError) as error:
        raise ModelError(f"model {path}: {error}") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ModelError(f"model {path} has damaged metadata: {_line(error)}") from None


def shipped_model(name: str = "traffic") -> Path:
    """Return the file of a model that comes with the package.

    Raises
    ------
    ModelError
        When there is none of this name; the message lists those that exist.
    """
    folder = Path(__file__).parent / "models"
    names = sorted(file.stem for file in folder.glob("*.safetensors"))
    if name not in names:
        raise ModelError(f"shipped model must be one of {', '.join(names) or '(none)'}, not {name!r}")
    return folder / f"{name}.safetensors"


def _assemble(metadata: Mapping[str, str], state: dict[str, Tensor]) -> VideoModel:
    if _CONFIG not in metadata:
        raise ModelError(f"its metadata must contain {_CONFIG!r}; this is a file of another program")
    config = ModelConfig.from_dict(json.loads(metadata[_CONFIG]))
    codebook = state.pop(_CODEBOOK, None)
    tokenizer = None
    if codebook is not None:
        if _GRID not in metadata:
            raise ModelError(f"its metadata must contain {_GRID!r}, since it has a codebook")
        tokenizer = PatchTokenizer(codebook.numpy(), tuple(json.loads(metadata[_GRID])))
    if _EMBEDDING in state:
        state.setdefault(_HEAD, state[_EMBEDDING])
    state = {name: value for name, value in state.items() if not name.endswith(_DERIVED_SUFFIX)}
    _check(config, state, tokenizer)
    state = {name: value.float() for name, value in state.items()}
    training = json.loads(metadata.get(_TRAINING, "{}"))
    if not isinstance(training, dict):
        raise ModelError(f"its {_TRAINING!r} must be notes by name, not {training!r}")
    return VideoModel(config=config, state=state, tokenizer=tokenizer, training=training)


def _line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
