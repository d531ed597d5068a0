"""The decoder in integers: one step of all lanes, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_hw.config import ModelConfig

from ..compiler.ops import OpTag
from ..quantized import QuantizedLayer, QuantizedModel
from .attention import Attention, KVCache
from .functions import Functions
from .linear import Linear, LinearFactory, activate
from .mlp import MLP, ReplayCache
from .norm import Norm, add_mantissas, mantissas
from .replay import Gate
from .rounding import round_shift_saturate, saturate
from .trace import Recorder

__all__ = ["Decoder", "DecoderLayer", "LayerState"]


class LayerState:
    """What one layer remembers.

    Attributes
    ----------
    kv : KVCache
    replay : ReplayCache
    """

    def __init__(self, config: ModelConfig, lanes: int, device: torch.device | str = "cpu") -> None:
        self.kv = KVCache(config, lanes, device)
        self.replay = ReplayCache(config, lanes, device)


class DecoderLayer:
    """One layer.

    Parameters
    ----------
    model, layer
        The integers.
    rope
        int64 (max_seq, head_dim).
    functions
        The tables.
    device
        Where the tensors live.
    linear
        Makes the products.
    """

    def __init__(
        self,
        model: QuantizedModel,
        layer: QuantizedLayer,
        rope: Tensor,
        functions: Functions,
        device: torch.device | str,
        linear: LinearFactory = Linear,
    ) -> None:
        self._slots = model.config.tokens_per_frame
        self._attn_norm = Norm(layer.attn_norm, model.e0, functions, device)
        self._qkv = linear((layer.query, layer.key, layer.value), device)
        self._attention = Attention(model.config, layer, rope, functions)
        self._output = linear((layer.output,), device)
        self._mlp = MLP(layer, Norm(layer.mlp_norm, model.e0, functions, device), functions, device, linear)

    def __call__(
        self, x: Tensor, position: int, layer: int, state: LayerState, gate: Gate, trace: Recorder
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run one position of all lanes.

        Returns
        -------
        x
            int64 (lanes, hidden), the residual stream after the layer.
        compute
            bool (lanes,): who computed its MLP.
        tas
            int64 (lanes,), or None where nobody asked for it.
        """
        needs_tas = gate.scores(position)
        y = self._attn_norm(x)
        act = activate(y)
        qkv = self._qkv(act)
        trace.add(OpTag.ATTN_NORM, y)
        trace.add(OpTag.ATTN_ACT, act.values)
        trace.add(OpTag.QKV, qkv)
        context, query = self._attention(qkv, position, state.kv, trace, needs_tas and gate.raw)
        tas = None
        if needs_tas:
            scores = self._attention.aligned_scores(query, state.kv, position - self._slots)
            tas = gate.total(scores)
            trace.add(OpTag.TAS, scores)
        act = activate(context)
        out = self._output(act)
        x = add_mantissas(x, *mantissas(out))
        trace.add(OpTag.OUT_ACT, act.values)
        trace.add(OpTag.OUT, out)
        trace.add(OpTag.ATTN_RES, x)

        compute = gate.computes(position, layer, tas)
        return self._mlp_or_replay(x, position, compute, state.replay, trace), compute, tas

    def _mlp_or_replay(self, x: Tensor, position: int, compute: Tensor, cache: ReplayCache, trace: Recorder) -> Tensor:
        slot = position % self._slots
        computing = compute.nonzero()[:, 0].to(x.device)
        replaying = (~compute).nonzero()[:, 0].to(x.device)
        if len(computing):
            everyone = not len(replaying)
            rows, m, e = self._mlp(x if everyone else x[computing], trace, computing)
            cache.write(slot, computing, m, e)
            x = rows if everyone else x.index_copy(0, computing, rows)
        if len(replaying):
            rows = add_mantissas(x[replaying], *cache.read(slot, replaying))
            trace.add(OpTag.REPLAY_RES, rows, replaying)
            x = x.index_copy(0, replaying, rows)
        return x


class Decoder:
    """The whole model on one device.

    Parameters
    ----------
    model
        The integers.
    device
        Where the tensors live.
    linear
        Makes the products.
    """

    def __init__(
        self, model: QuantizedModel, device: torch.device | str = "cpu", linear: LinearFactory = Linear
    ) -> None:
        self.functions = Functions(device)
        self._config = model.config
        self._embedding = torch.tensor(model.embedding, device=device)
        self._positions = None if model.positions is None else torch.tensor(model.positions, device=device)
        self._shifts = (model.embedding_shift, model.position_shift)
        rope = torch.tensor(model.rope.astype("int64"), device=device)
        self._layers = [DecoderLayer(model, layer, rope, self.functions, device, linear) for layer in model.layers]
        self._norm = Norm(model.final_norm, model.e0, self.functions, device)
        self._head = linear((model.head,), device)

    def embed(self, tokens: Tensor, position: int, trace: Recorder) -> Tensor:
        """Return the residual stream int64 (lanes, hidden) of tokens int64 (lanes,) (section 3)."""
        trace.at(position, 0)
        x = round_shift_saturate(self._embedding[tokens].long(), self._shifts[0], 32)
        if self._positions is not None:
            row = self._positions[position % self._config.tokens_per_frame].long()
            x = saturate(x + round_shift_saturate(row, self._shifts[1], 32), 32)
        trace.add(OpTag.EMBED, x)
        return x

    def layer(
        self, x: Tensor, position: int, layer: int, state: LayerState, gate: Gate, trace: Recorder
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run one layer; see `DecoderLayer`."""
        trace.at(position, layer)
        return self._layers[layer](x, position, layer, state, gate, trace)

    def logits(self, x: Tensor, position: int, trace: Recorder) -> Tensor:
        """Return logits int64 (lanes, vocab), 32-bit values."""
        trace.at(position, self._config.layers)
        y = self._norm(x)
        act = activate(y)
        logits = self._head(act)
        trace.add(OpTag.FINAL_NORM, y)
        trace.add(OpTag.FINAL_ACT, act.values)
        trace.add(OpTag.LOGITS, logits)
        return logits
