"""The program of a model: loops over positions, layers and lanes, with the heads unrolled.

Loads stand as early as the order of the beat FIFO allows, so that the memory works while vectors are normalised;
`wait` stands where a unit reads what another one writes.
"""

from __future__ import annotations

from collections.abc import Callable

from fastcar_hw.config import AcceleratorConfig, ConfigError
from fastcar_hw.isa import (
    Cond,
    CsrIndex,
    Dest,
    GateFunc,
    Instruction,
    LoadClass,
    Map,
    MatMode,
    Op,
    ProgramError,
    StoreFunc,
    Unit,
    VecFunc,
)

from ..quantized import QuantizedLayer, QuantizedModel
from .assembler import Assembler
from .layout import Layout
from .ops import OpTag

__all__ = ["ProgramBuilder", "build_program"]

# Registers.  r1 and r2 are what the host sees as layer and position; r4, r5, r11 and r14 are temporary.
LAYER, POSITION, LANE = 1, 2, 3
T0, T1, T2, T3 = 4, 5, 11, 14
WEIGHTS = 6  # parameters of the present layer
KEYS, VALUES = 7, 8  # caches of lane 0 in the present layer
COUNT = 9  # positions that attention sees: position + 1
ELIGIBLE = 10
SLOTS = 12  # replay slot of lane 0, present layer and place in the frame
PLACE = 13  # position mod tokens_per_frame
BLOCK = 15  # byte offset of the present block of keys

#: Trap code: a token is not in the vocabulary.
TRAP_TOKEN = 1


class ProgramBuilder:
    """Emits the program of one model for one accelerator."""

    def __init__(self, model: QuantizedModel, config: AcceleratorConfig) -> None:
        config.check_model(model.config)
        self.q, self.m, self.c = model, model.config, config
        self.a = Assembler()
        # The length of the program moves nothing but the sections behind it, so a first pass measures it.
        self.layout = Layout(self.m, config, 0)
        g = config.derived
        self.w = config.vector_width
        self.queries = g.max_vector
        self.raw = g.max_vector + g.q_dim
        self.probabilities = g.max_vector + 2 * g.q_dim
        self.rope_word = config.max_hidden // self.w

    def build(self, layout: Layout) -> list[Instruction]:
        """Return the program for a memory map."""
        self.a, self.layout = Assembler(), layout
        a = self.a
        a.emit(Op.SET, rc=POSITION)
        a.emit(Op.SET, rc=PLACE)
        a.emit(Op.JMP, "test")
        a.label("position")
        self._begin_position()
        self._embed()
        if self.q.uniform:
            a.label("layer")
            self._layer(self.q.layers[0])
            a.emit(Op.SET, rc=T0, imm=self.m.layers)
            a.emit(Op.BLT, "layer", ra=LAYER, rb=T0)
        else:
            for layer in self.q.layers:
                self._layer(layer)
        self._head()
        a.label("next")
        a.emit(Op.SET, rc=POSITION, ra=POSITION, imm=1)
        a.emit(Op.SET, rc=PLACE, ra=PLACE, imm=1)
        a.emit(Op.SET, rc=T0, imm=self.m.tokens_per_frame)
        a.emit(Op.BLT, "same_frame", ra=PLACE, rb=T0)
        a.emit(Op.SET, rc=PLACE)
        a.label("same_frame")
        # The last position has no successor, so nothing is decoded there.
        a.label("test")
        a.emit(Op.CSR, rc=T0, n=CsrIndex.TOTAL.value)
        a.emit(Op.SET, rc=T1, ra=POSITION, imm=1)
        a.emit(Op.BLT, "position", ra=T1, rb=T0)
        a.wait(Unit.MATRIX, Unit.VECTOR, Unit.STORE, Unit.GATE, Unit.SAMPLE)
        a.emit(Op.HALT)
        return a.finish()

    # Pieces -----------------------------------------------------------------------------------------------------

    def _lanes(self, body: Callable[[], None], begin: Callable[[], None] = lambda: None) -> None:
        """Loop over the active lanes."""
        a = self.a
        label = a.fresh("lane")
        a.emit(Op.SET, rc=LANE)
        begin()
        a.label(label)
        body()
        a.emit(Op.SET, rc=LANE, ra=LANE, imm=1)
        a.emit(Op.CSR, rc=T0, n=CsrIndex.LANES.value)
        a.emit(Op.BLT, label, ra=LANE, rb=T0)

    def _base(self, rc: int, index: CsrIndex, offset: int) -> None:
        """Put the address of a section into a register."""
        self.a.emit(Op.CSR, rc=rc, n=index.value)
        self.a.emit(Op.SET, rc=rc, ra=rc, imm=offset)

    def _weights(self, name: str, dest: Dest, kind: LoadClass, cond: Cond = Cond.ALWAYS) -> None:
        offset, beats = self.layout.layer_sections[name]
        self.a.load(dest, kind, ra=WEIGHTS, imm=offset, n=beats, cond=cond)

    def _begin_position(self) -> None:
        """Compute what belongs to the position: T, block, eligibility."""
        a, lay = self.a, self.layout
        n = self.m.tokens_per_frame
        a.emit(Op.SET, rc=LAYER)
        a.emit(Op.SET, rc=COUNT, ra=POSITION, imm=1)
        a.emit(Op.SHR, rc=BLOCK, ra=POSITION, n=self.c.cols.bit_length() - 1)
        a.emit(Op.MUL, rc=BLOCK, ra=BLOCK, n=lay.key_block)
        # Eligible from max(prompt, N, (prompt div N + warmup) * N) on.
        a.emit(Op.CSR, rc=T0, n=CsrIndex.PROMPT.value)
        a.emit(Op.SET, rc=T1, ra=T0)
        a.emit(Op.SET, rc=T2)
        a.emit(Op.SET, rc=T3, imm=n)
        a.label("divide")
        a.emit(Op.BLT, "divided", ra=T1, rb=T3)
        a.emit(Op.SUB, rc=T1, ra=T1, rb=T3)
        a.emit(Op.ADD, rc=T2, ra=T2, rb=T3)
        a.emit(Op.JMP, "divide")
        a.label("divided")
        a.emit(Op.CSR, rc=T1, n=CsrIndex.WARMUP.value)
        a.emit(Op.MUL, rc=T1, ra=T1, n=n)
        a.emit(Op.ADD, rc=T2, ra=T2, rb=T1)
        a.emit(Op.SET, rc=ELIGIBLE)
        for bound in (T0, T2, T3):
            a.emit(Op.BLT, "judged", ra=POSITION, rb=bound)
        a.emit(Op.SET, rc=ELIGIBLE, imm=1)
        a.label("judged")
        self._base(WEIGHTS, CsrIndex.IMAGE, lay.image_sections["layers"][0])
        self._base(KEYS, CsrIndex.HEAP, lay.heap_sections["keys"][0])
        self._base(VALUES, CsrIndex.HEAP, lay.heap_sections["values"][0])
        self._base(SLOTS, CsrIndex.HEAP, lay.heap_sections["slots"][0])
        a.emit(Op.MUL, rc=T0, ra=PLACE, n=lay.slot)
        a.emit(Op.ADD, rc=SLOTS, ra=SLOTS, rb=T0)

    def _embed(self) -> None:
        """Rotary factors of the position, then token and place embedding of every lane."""
        a, lay, m = self.a, self.layout, self.m
        row = lay.beats16(m.hidden)
        rope = lay.beats16(m.head_dim)
        self._base(T1, CsrIndex.IMAGE, lay.image_sections["rope"][0])
        a.emit(Op.MUL, rc=T0, ra=POSITION, n=rope * lay.beat)
        a.emit(Op.ADD, rc=T1, ra=T1, rb=T0)
        a.load(Dest.VECTOR, LoadClass.PARAMS, ra=T1, imm=0, n=rope)
        a.vector(VecFunc.PARAM, n=m.head_dim, off=self.rope_word)

        def begin() -> None:
            self._base(T1, CsrIndex.HEAP, lay.heap_sections["tokens"][0])
            a.emit(Op.MUL, rc=T0, ra=POSITION, n=self.c.lanes * lay.beat)
            a.emit(Op.ADD, rc=T1, ra=T1, rb=T0)

        def body() -> None:
            a.wait(Unit.STORE)
            a.load(Dest.CTRL, LoadClass.CONTROL, ra=T1, imm=0, n=1)
            a.emit(Op.SET, rc=T1, ra=T1, imm=lay.beat)
            a.emit(Op.POP, rc=T2)
            a.emit(Op.SET, rc=T0, imm=m.vocab)
            good = a.fresh("token")
            a.emit(Op.BLT, good, ra=T2, rb=T0)
            a.emit(Op.TRAP, imm=TRAP_TOKEN)
            a.label(good)
            a.emit(Op.MUL, rc=T2, ra=T2, n=row * lay.beat)
            a.emit(Op.CSR, rc=T3, n=CsrIndex.IMAGE.value)
            a.emit(Op.ADD, rc=T2, ra=T2, rb=T3)
            a.load(Dest.VECTOR, LoadClass.PARAMS, ra=T2, imm=lay.image_sections["embedding"][0], n=row)
            last = OpTag.NONE if m.frame_embedding else OpTag.EMBED
            a.vector(VecFunc.EMBED, last, rc=LANE, n=m.hidden, shift=self.q.embedding_shift)
            if m.frame_embedding:
                a.emit(Op.MUL, rc=T2, ra=PLACE, n=row * lay.beat)
                a.emit(Op.ADD, rc=T2, ra=T2, rb=T3)
                a.load(Dest.VECTOR, LoadClass.PARAMS, ra=T2, imm=lay.image_sections["positions"][0], n=row)
                a.vector(VecFunc.EMBED_ADD, OpTag.EMBED, rc=LANE, n=m.hidden, shift=self.q.position_shift)

        self._lanes(body, begin)

    def _norm(self, shift: int, tags: tuple[OpTag, OpTag], cond: Cond = Cond.ALWAYS, place: Map = Map.STATIC) -> None:
        """Norm and quantization of every lane; the gains are in P."""
        a, m = self.a, self.m

        def body() -> None:
            a.vector(VecFunc.SQUARES, rc=LANE, n=m.hidden, imm=self.q.eps, eidx=self.q.eps_shift, cond=cond)
            a.vector(VecFunc.NORM, tags[0], rc=LANE, n=m.hidden, shift=shift, cond=cond)
            a.vector(VecFunc.QUANT_ACT, tags[1], rc=LANE, n=m.hidden, map=place, cond=cond)

        self._lanes(body)

    def _linear(self, name: str, tag: OpTag, layer: QuantizedLayer, word: int, place: Map = Map.STATIC,
                cond: Cond = Cond.ALWAYS) -> None:  # fmt: skip
        linear = getattr(layer, name)
        out, width = linear.weight.shape
        self.a.matmul(MatMode.LINEAR, tag, steps=width, act=0, n=out // self.c.cols, off=word, shift=linear.shift,
                      map=place, cond=cond)  # fmt: skip

    def _layer(self, layer: QuantizedLayer) -> None:
        """One decoder layer of all lanes."""
        a, m, lay = self.a, self.m, self.layout
        a.gate(GateFunc.BEGIN, ra=LAYER, rb=ELIGIBLE)
        self._weights("attn_norm", Dest.VECTOR, LoadClass.PARAMS)
        for name in ("query", "key", "value"):
            self._weights(name, Dest.MATRIX, LoadClass.WEIGHTS)
        a.vector(VecFunc.PARAM, n=m.hidden)
        self._norm(layer.attn_norm.shift, (OpTag.ATTN_NORM, OpTag.ATTN_ACT))
        a.wait(Unit.VECTOR)
        self._linear("query", OpTag.QKV, layer, 0)
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)
        # Queries are rotated while keys are projected, and keys while values are.
        self._linear("key", OpTag.QKV, layer, m.q_dim // self.w)
        self._queries()
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)
        self._linear("value", OpTag.QKV, layer, (m.q_dim + m.kv_dim) // self.w)
        self._keys()
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)
        self._values()
        self._decide(layer)
        self._attention(layer)
        self._weights("output", Dest.MATRIX, LoadClass.WEIGHTS)
        a.wait(Unit.VECTOR)
        self._linear("output", OpTag.OUT, layer, 0)
        # What the MLP needs is asked for while the output projection runs.
        def slots() -> None:
            a.load(Dest.VECTOR, LoadClass.REPLAY, ra=T1, imm=0, n=lay.slot // lay.beat, cond=Cond.REPLAY, rc=LANE)
            a.emit(Op.SET, rc=T1, ra=T1, imm=m.tokens_per_frame * lay.slot)

        self._lanes(slots, lambda: a.emit(Op.SET, rc=T1, ra=SLOTS))
        self._weights("mlp_norm", Dest.VECTOR, LoadClass.PARAMS, Cond.ANY)
        for name in ("gate", "up", "down"):
            self._weights(name, Dest.MATRIX, LoadClass.WEIGHTS, Cond.ANY)
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)

        def residual() -> None:
            a.vector(VecFunc.AMAX, rc=LANE, n=m.hidden)
            a.vector(VecFunc.RESIDUAL, OpTag.ATTN_RES, rc=LANE, n=m.hidden)
            a.vector(VecFunc.REPLAY, OpTag.REPLAY_RES, rc=LANE, n=m.hidden, cond=Cond.REPLAY)

        self._lanes(residual)
        self._mlp(layer)
        a.emit(Op.SET, rc=WEIGHTS, ra=WEIGHTS, imm=lay.layer_bytes)
        a.emit(Op.SET, rc=KEYS, ra=KEYS, imm=self.c.lanes * m.kv_heads * lay.key_head)
        a.emit(Op.SET, rc=VALUES, ra=VALUES, imm=self.c.lanes * m.kv_heads * lay.slices * lay.value_slice)
        a.emit(Op.SET, rc=SLOTS, ra=SLOTS, imm=self.c.lanes * m.tokens_per_frame * lay.slot)
        a.emit(Op.SET, rc=LAYER, ra=LAYER, imm=1)

    def _queries(self) -> None:
        """Rotate and quantize the queries."""
        a, m = self.a, self.m
        words = m.head_dim // self.w

        def body() -> None:
            for head in range(m.heads):
                word = head * words
                a.vector(VecFunc.AMAX, rc=LANE, n=m.head_dim, off=word, cond=Cond.RAW)
                a.vector(VecFunc.QUANT_ACT, OpTag.QUERY_RAW, rc=LANE, n=m.head_dim, off=word, cond=Cond.RAW,
                         imm=self.raw + head * m.head_dim, eidx=4 + self.c.max_heads + head)  # fmt: skip
                a.vector(VecFunc.ROPE, OpTag.ROPE_Q, rc=LANE, n=m.head_dim, off=word,
                         imm=word | self.rope_word << 16)  # fmt: skip
                a.vector(VecFunc.QUANT_ACT, OpTag.QUERY, rc=LANE, n=m.head_dim, off=word,
                         imm=self.queries + head * m.head_dim, eidx=4 + head)  # fmt: skip

        self._lanes(body)

    def _keys(self) -> None:
        """Rotate and quantize the keys; write them to the cache."""
        a, m, lay = self.a, self.m, self.layout
        words = m.head_dim // self.w

        def body() -> None:
            for head in range(m.kv_heads):
                word = m.q_dim // self.w + head * words
                a.store(StoreFunc.SCATTER, ra=T1, imm=head * lay.key_head + lay.beat, n=1 + m.head_dim, rd=POSITION)
                a.vector(VecFunc.ROPE, OpTag.ROPE_K, rc=LANE, n=m.head_dim, off=word,
                         imm=word | self.rope_word << 16)  # fmt: skip
                a.vector(VecFunc.QUANT_BYTES, OpTag.KEY, rc=LANE, n=m.head_dim, off=word)
            a.emit(Op.SET, rc=T1, ra=T1, imm=m.kv_heads * lay.key_head)

        self._lanes(body, lambda: a.emit(Op.ADD, rc=T1, ra=KEYS, rb=BLOCK))

    def _values(self) -> None:
        """Quantize the values; write them, and their exponents (to the key blocks), to the cache."""
        a, m, lay = self.a, self.m, self.layout
        words = m.head_dim // self.w

        def body() -> None:
            for head in range(m.kv_heads):
                word = (m.q_dim + m.kv_dim) // self.w + head * words
                a.store(StoreFunc.SCATTER, ra=T1, imm=head * lay.key_head, n=1, rd=POSITION)
                for part in range(lay.slices):
                    offset = (head * lay.slices + part) * lay.value_slice
                    a.store(StoreFunc.PACK, ra=T2, imm=offset, n=self.c.cols)
                a.vector(VecFunc.AMAX, rc=LANE, n=m.head_dim, off=word)
                a.vector(VecFunc.QUANT_BYTES, OpTag.VALUE, rc=LANE, n=m.head_dim, off=word)
            a.emit(Op.SET, rc=T1, ra=T1, imm=m.kv_heads * lay.key_head)
            a.emit(Op.SET, rc=T2, ra=T2, imm=m.kv_heads * lay.slices * lay.value_slice)

        def begin() -> None:
            a.emit(Op.ADD, rc=T1, ra=KEYS, rb=BLOCK)
            a.emit(Op.MUL, rc=T2, ra=POSITION, n=lay.beat)
            a.emit(Op.ADD, rc=T2, ra=T2, rb=VALUES)

        self._lanes(body, begin)

    def _decide(self, layer: QuantizedLayer) -> None:
        """Scores of the aligned keys, decisions, schedule."""
        a, m, lay = self.a, self.m, self.layout
        beats = lay.key_block // lay.beat
        group = m.heads // m.kv_heads

        def begin() -> None:
            # Without an aligned token nothing here runs: the conditions hold only for eligible positions.
            a.emit(Op.SET, rc=T2, ra=POSITION, imm=-m.tokens_per_frame)
            a.emit(Op.SHR, rc=T1, ra=T2, n=self.c.cols.bit_length() - 1)
            a.emit(Op.MUL, rc=T1, ra=T1, n=lay.key_block)
            a.emit(Op.ADD, rc=T1, ra=T1, rb=KEYS)
            a.emit(Op.AND, rc=T2, ra=T2, imm=self.c.cols - 1)

        def body() -> None:
            for head in range(m.heads):
                a.load(Dest.MATRIX, LoadClass.KV, ra=T1, imm=head // group * lay.key_head, n=beats, cond=Cond.TAS)
                for cond, act, entry in (
                    (Cond.PAPER, self.queries, 4),
                    (Cond.RAW, self.raw, 4 + self.c.max_heads),
                ):
                    if head == 0:
                        a.wait(Unit.VECTOR)
                    a.matmul(MatMode.TAS, OpTag.TAS, steps=m.head_dim, act=act + head * m.head_dim, rb=T2, off=head,
                             shift=layer.score_shift, eidx=entry + head, map=Map.LANE, rc=LANE, cond=cond)  # fmt: skip
            a.emit(Op.SET, rc=T1, ra=T1, imm=m.kv_heads * lay.key_head)

        a.wait(Unit.STORE)
        a.emit(Op.NOP)
        self._lanes(body, begin)
        # Recorded decisions: one beat for all lanes.
        self._base(T1, CsrIndex.HEAP, lay.heap_sections["forced"][0])
        a.emit(Op.MUL, rc=T2, ra=POSITION, n=m.layers * lay.beat)
        a.emit(Op.ADD, rc=T1, ra=T1, rb=T2)
        a.emit(Op.MUL, rc=T2, ra=LAYER, n=lay.beat)
        a.emit(Op.ADD, rc=T1, ra=T1, rb=T2)
        a.load(Dest.CTRL, LoadClass.CONTROL, ra=T1, imm=0, n=1, cond=Cond.FORCED)
        a.emit(Op.POP, rc=T2, cond=Cond.FORCED)
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)
        self._lanes(lambda: a.gate(GateFunc.DECIDE, ra=T2, rc=LANE))
        a.gate(GateFunc.SCHEDULE)
        # Conditions of later instructions read the index register.
        a.wait(Unit.GATE)
        a.emit(Op.NOP)

    def _attention(self, layer: QuantizedLayer) -> None:
        """All heads of all lanes; scores of a head run while the softmax of the one before is computed."""
        a, m, lay, c = self.a, self.m, self.layout, self.c
        group = m.heads // m.kv_heads
        words = m.head_dim // self.w

        def score(head: int) -> None:
            a.matmul(MatMode.SCORE, OpTag.SCORE, steps=m.head_dim, act=self.queries + head * m.head_dim, rb=T3,
                     rd=COUNT, shift=layer.score_shift, eidx=4 + head, bank=head & 1, map=Map.LANE,
                     rc=LANE)  # fmt: skip

        def load_keys(head: int) -> None:
            a.load(Dest.MATRIX, LoadClass.KV, ra=T1, imm=head // group * lay.key_head, rb=T0)

        def body() -> None:
            a.emit(Op.SHR, rc=T3, ra=POSITION, n=c.cols.bit_length() - 1)
            a.emit(Op.SET, rc=T3, ra=T3, imm=1)
            a.emit(Op.MUL, rc=T0, ra=T3, n=m.head_dim + 2)
            load_keys(0)
            a.wait(Unit.VECTOR)
            score(0)
            for head in range(m.heads):
                if head + 1 < m.heads:
                    load_keys(head + 1)
                for part in range(lay.slices):
                    offset = (head // group * lay.slices + part) * lay.value_slice
                    a.load(Dest.MATRIX, LoadClass.KV, ra=T2, imm=offset, rb=COUNT)
                bank = head & 1
                act = self.probabilities + bank * c.max_seq
                a.wait(Unit.MATRIX)
                a.vector(VecFunc.SOFTMAX, OpTag.WEIGHT, rc=LANE, rb=COUNT, bank=bank)
                a.vector(VecFunc.QUANT_PROB, OpTag.PROB, rc=LANE, rb=COUNT, bank=bank, imm=act, eidx=2 + bank)
                if head + 1 < m.heads:
                    score(head + 1)
                a.wait(Unit.VECTOR)
                a.matmul(MatMode.PV, OpTag.ATTN_OUT, steps=0, ra=COUNT, act=act, n=lay.slices, off=head * words,
                         shift=layer.context_shift, eidx=2 + bank, map=Map.LANE, rc=LANE)  # fmt: skip
            a.wait(Unit.MATRIX)
            a.vector(VecFunc.AMAX, rc=LANE, n=m.q_dim)
            a.vector(VecFunc.QUANT_ACT, OpTag.OUT_ACT, rc=LANE, n=m.q_dim)
            a.emit(Op.SET, rc=T1, ra=T1, imm=m.kv_heads * lay.key_head)
            a.emit(Op.SET, rc=T2, ra=T2, imm=m.kv_heads * lay.slices * lay.value_slice)

        def begin() -> None:
            a.emit(Op.SET, rc=T1, ra=KEYS)
            a.emit(Op.SET, rc=T2, ra=VALUES)

        self._lanes(body, begin)

    def _mlp(self, layer: QuantizedLayer) -> None:
        """Compute the MLP of the lanes that do not replay; its loads were issued before."""
        a, m, lay = self.a, self.m, self.layout
        up = m.ffn // self.w
        a.vector(VecFunc.PARAM, n=m.hidden, cond=Cond.ANY)
        self._norm(layer.mlp_norm.shift, (OpTag.MLP_NORM, OpTag.MLP_ACT), Cond.COMPUTE, Map.MAPPED)
        a.wait(Unit.VECTOR)
        self._linear("gate", OpTag.GATE, layer, 0, Map.MAPPED, Cond.ANY)
        self._linear("up", OpTag.UP, layer, up, Map.MAPPED, Cond.ANY)
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)
        shifts = (layer.gate_shift & 127) << 16 | (layer.silu_shift & 127) << 24

        def activate() -> None:
            a.vector(VecFunc.SWIGLU, OpTag.SWIGLU, rc=LANE, n=m.ffn, imm=up | shifts, shift=layer.product_shift,
                     cond=Cond.COMPUTE)  # fmt: skip
            a.vector(VecFunc.QUANT_ACT, OpTag.HIDDEN_ACT, rc=LANE, n=m.ffn, map=Map.MAPPED, cond=Cond.COMPUTE)

        self._lanes(activate)
        a.wait(Unit.VECTOR)
        self._linear("down", OpTag.DOWN, layer, 0, Map.MAPPED, Cond.ANY)
        a.wait(Unit.MATRIX)
        a.emit(Op.NOP)

        def finish() -> None:
            a.vector(VecFunc.AMAX, rc=LANE, n=m.hidden, cond=Cond.COMPUTE)
            a.store(StoreFunc.PACK, ra=T1, n=1, rc=LANE, cond=Cond.COMPUTE)
            a.store(StoreFunc.PACK, ra=T1, imm=lay.beat, n=2 * m.hidden, rc=LANE, cond=Cond.COMPUTE)
            a.vector(VecFunc.RESIDUAL_STORE, OpTag.MLP_RES, rc=LANE, n=m.hidden, cond=Cond.COMPUTE)
            a.emit(Op.SET, rc=T1, ra=T1, imm=m.tokens_per_frame * lay.slot)

        self._lanes(finish, lambda: a.emit(Op.SET, rc=T1, ra=SLOTS))

    def _head(self) -> None:
        """Logits and the next token, where they are wanted."""
        a, m, lay = self.a, self.m, self.layout
        a.emit(Op.CSR, rc=T0, n=CsrIndex.HEAD_ALL.value)
        a.emit(Op.BLT, "logits", ra=0, rb=T0)
        a.emit(Op.CSR, rc=T0, n=CsrIndex.PROMPT.value)
        a.emit(Op.BLT, "next", ra=COUNT, rb=T0)
        a.label("logits")
        a.emit(Op.CSR, rc=T1, n=CsrIndex.IMAGE.value)
        offset, size = lay.image_sections["final_norm"]
        a.load(Dest.VECTOR, LoadClass.PARAMS, ra=T1, imm=offset, n=size // lay.beat)
        offset, size = lay.image_sections["head"]
        beats = size // lay.beat
        tile = 2 + m.hidden
        # A large vocabulary is loaded in several descriptors: a count has 16 bits.
        step = 0xFFFF // tile * tile
        for start in range(0, beats, step):
            a.load(Dest.MATRIX, LoadClass.WEIGHTS, ra=T1, imm=offset + start * lay.beat, n=min(step, beats - start))
        a.vector(VecFunc.PARAM, n=m.hidden)
        self._norm(self.q.final_norm.shift, (OpTag.FINAL_NORM, OpTag.FINAL_ACT))
        a.wait(Unit.VECTOR)
        a.matmul(MatMode.LOGITS, OpTag.LOGITS, steps=m.hidden, act=0, n=m.vocab // self.c.cols,
                 shift=self.q.head.shift)  # fmt: skip
        a.wait(Unit.MATRIX)
        a.emit(Op.CSR, rc=T0, n=CsrIndex.PROMPT.value)
        a.emit(Op.BLT, "next", ra=COUNT, rb=T0)

        def body() -> None:
            a.emit(Op.SAMPLE, rc=LANE)
            a.wait(Unit.SAMPLE)
            a.emit(Op.TOK, rc=T2, ra=LANE)
            a.store(StoreFunc.WORD, ra=T1, rb=T2)
            a.emit(Op.SET, rc=T1, ra=T1, imm=lay.beat)

        def begin() -> None:
            self._base(T1, CsrIndex.HEAP, lay.heap_sections["tokens"][0])
            a.emit(Op.MUL, rc=T0, ra=COUNT, n=self.c.lanes * lay.beat)
            a.emit(Op.ADD, rc=T1, ra=T1, rb=T0)

        self._lanes(body, begin)


def build_program(model: QuantizedModel, config: AcceleratorConfig) -> tuple[list[Instruction], Layout]:
    """Compile a model.

    Returns
    -------
    program, layout
        Instructions and the memory map that they were made for.

    Raises
    ------
    ConfigError
        When the hardware cannot run the model.
    ProgramError
        When the program does not fit the program memory.
    """
    config.check_model(model.config)
    _check_queue(Layout(model.config, config, 1))
    builder = ProgramBuilder(model, config)
    length = len(builder.build(Layout(model.config, config, 1)))
    if length > config.program_words:
        raise ProgramError(f"the program has {length} instructions, but program_words is {config.program_words}")
    layout = Layout(model.config, config, length)
    return builder.build(layout), layout


def _check_queue(layout: Layout) -> None:
    """Raise `ConfigError` where loads could wait for consumers that are not issued yet, for ever.

    In front of the MLP the sequencer issues a load a lane (replay slots), one of gains and three of weights before
    the passes that take them.  Either the queue holds them all, or the beat FIFO takes the beats of slots and gains,
    so that at most the three of the weights wait in the queue.
    """
    c = layout.config
    loads = c.lanes + 4
    beats = c.lanes * layout.slot // layout.beat + layout.beats16(layout.model.hidden) + c.burst_beats
    if loads > c.load_queue and (beats > c.weight_fifo_depth or c.load_queue < 4):
        raise ConfigError(
            f"load_queue must be at least {loads} for lanes={c.lanes}, or weight_fifo_depth at least {beats} with a "
            f"load_queue of at least 4, not load_queue={c.load_queue} and weight_fifo_depth={c.weight_fifo_depth}"
        )
