"""The twin against a second implementation of docs/numerics.md: plain Python integers, one element at a time.

The oracle shares nothing with the twin but the ROM tables; every traced integer of every operation must
agree.
"""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import torch

from fastcar_hw.config import ModelConfig
from fastcar_hw.numerics.tables import exp2neg_table, rsqrt_table, sigmoid_table
from fastcar_hw.presets import MODELS
from fastcar_sw.compiler.ops import OpTag
from fastcar_sw.gates import GateSettings
from fastcar_sw.quantize import quantize, random_model, random_tokens
from fastcar_sw.quantized import QuantizedLayer, QuantizedLinear, QuantizedModel, QuantizedNorm
from fastcar_sw.sampling import SamplingSettings
from fastcar_sw.twin import Twin


def sat(x, n):
    return max(-(2 ** (n - 1)), min(2 ** (n - 1) - 1, x))


def shr(x, k):
    if k > 0:
        return (x + 2 ** (k - 1)) >> k
    return x << -k


def rsat(x, k, n):
    return sat(shr(x, max(-16, min(47, k))), n)


def e_n(a, n):
    return max(0, a.bit_length() - (n - 1))


def quant(y, e, n):
    limit = 2 ** (n - 1) - 1
    return max(-limit, min(limit, shr(y, e)))


def amax(values):
    return max(abs(v) for v in values)


def exp2neg(d):
    base, slope = exp2neg_table()
    i, f = d >> 12, d & 4095
    t = base[f >> 6] - shr(slope[f >> 6] * (f & 63), 6)
    return shr(t, i) if i <= 16 else 0


def sigmoid(z):
    base, slope = sigmoid_table()
    a = min(abs(z), 32767)
    t = base[a >> 7] + shr(slope[a >> 7] * (a & 127), 7)
    return t if z >= 0 else 32768 - t


def rsqrt(v):
    if v == 0:
        return 65535, 0
    base, slope = rsqrt_table()
    h = (v.bit_length() - 1) >> 1
    mm = v * 2**14 // 4**h
    index, r = (mm - 2**14) >> 8, (mm - 2**14) & 255
    return base[index] - shr(slope[index] * r, 8), h


def act8(y):
    e = e_n(amax(y), 8)
    return [quant(v, e, 8) for v in y], e


def linear(m, act, ex):
    weight, scale = m.weight.tolist(), m.scale.tolist()
    return [
        rsat(sum(w * a for w, a in zip(row, act, strict=True)) * ws, m.shift - ex, 32)
        for row, ws in zip(weight, scale, strict=True)
    ]


def norm(m, gains, x):
    e = e_n(amax(x), 16)
    xm = [quant(v, e, 16) for v in x]
    r, h = rsqrt(sum(v * v for v in xm) + ((m.eps << m.eps_shift) >> (2 * e)))
    return [
        rsat(rsat(v * r, h - 14, 32) * g, gains.shift, 32)
        for v, g in zip(xm, gains.gain.tolist(), strict=True)
    ]


def mantissas(y):
    e = e_n(amax(y), 16)
    return [quant(v, e, 16) for v in y], e


def residual(x, m, e):
    return [sat(a + (b << e), 32) for a, b in zip(x, m, strict=True)]


def rotate(y, row):
    out = []
    for i in range(0, len(y), 2):
        c, s = row[i], row[i + 1]
        out += [rsat(y[i] * c - y[i + 1] * s, 14, 32), rsat(y[i] * s + y[i + 1] * c, 14, 32)]
    return out


class Oracle:
    """One lane of one run."""

    def __init__(self, model, lane, prompt, gate, sampling, forced):
        self.m, self.c, self.lane, self.prompt = model, model.config, lane, prompt
        self.gate, self.forced = gate, forced
        self.sampling = sampling.registers(model.logit_fraction)
        self.state = (self.sampling.seed ^ (0x9E3779B9 * (lane + 1) % 2**32)) or 1
        self.keys, self.values, self.slots = defaultdict(list), defaultdict(list), {}
        self.trace, self.compute = {}, {}

    def attention(self, layer, i, p, y, note):
        c, hd = self.c, self.c.head_dim
        row = self.m.rope[p].tolist()

        def head(start, n):
            return y[start + n * hd : start + (n + 1) * hd]

        raw, queries, rotated, context, found = [], [], [], [], defaultdict(list)
        eligible = self.eligible(p)
        for n in range(c.heads):
            raw.append(act8(head(0, n)))
            rotated += (turned := rotate(head(0, n), row))
            queries.append(act8(turned))
        turned_keys = []
        for n in range(c.kv_heads):
            turned_keys += (k := rotate(head(c.q_dim, n), row))
            v = head(c.q_dim + c.kv_dim, n)
            self.keys[i, n].append(act8(k))
            self.values[i, n].append(act8(v))
            for tag, (values, e) in ((OpTag.KEY, act8(k)), (OpTag.VALUE, act8(v))):
                found[tag] += [e, *values]
        note(OpTag.ROPE_Q, rotated)
        note(OpTag.ROPE_K, turned_keys)
        note(OpTag.QUERY, [v for q, _ in queries for v in q])

        def score(query, key):
            (q, ex), (k, ke) = query, key
            return rsat(sum(a * b for a, b in zip(q, k, strict=True)), layer.score_shift - ex - ke, 24)

        for n in range(c.heads):
            keys, values = (cache[i, n // (c.heads // c.kv_heads)] for cache in (self.keys, self.values))
            s = [score(queries[n], key) for key in keys]
            vm = max(e for _, e in values)
            top = [exp2neg(max(s) - t) for t in s]
            total = sum(top)
            w = [shr(t, vm - e) for t, (_, e) in zip(top, values, strict=True)]
            ep = e_n(max(w), 8)
            prob = [min(127, shr(t, ep)) for t in w]
            b = total.bit_length()
            rc = min(65535, 2 ** (b + 15) // total)
            for j in range(hd):
                acc = sum(a * v[j] for a, (v, _) in zip(prob, values, strict=True))
                context.append(rsat(acc * rc, layer.context_shift - (ep + vm - b), 32))
            found[OpTag.SCORE] += s
            found[OpTag.WEIGHT] += w
            found[OpTag.PROB] += prob
            if eligible and self.gate.kind == "tas":
                query = raw[n] if self.gate.definition == "reference-code" else queries[n]
                found[OpTag.TAS].append(score(query, keys[p - c.tokens_per_frame]))
        if OpTag.TAS in found and self.gate.definition == "reference-code":
            note(OpTag.QUERY_RAW, [v for q, _ in raw for v in q])
        for tag, values in found.items():
            note(tag, values)
        note(OpTag.ATTN_OUT, context)
        return context, found.get(OpTag.TAS)

    def eligible(self, p):
        n = self.c.tokens_per_frame
        return p >= self.prompt and p // n - self.prompt // n >= self.gate.warmup_frames and p >= n

    def computes(self, i, p, scores):
        if not self.eligible(p) or self.gate.kind == "never":
            return True
        if self.gate.kind == "always":
            return False
        if self.gate.kind == "forced":
            return bool(self.forced[p, i, self.lane])
        tas = sum(h * s for h, s in zip(self.gate.integer_weights(self.c), scores, strict=True))
        theta = self.gate.integer_thresholds(self.c)[i]
        return not (tas > theta if self.gate.definition == "reference-code" else tas >= theta)

    def step(self, p, token, head):
        m = self.m

        def noter(layer):
            return lambda tag, values: self.trace.__setitem__((p, layer, tag), list(values))

        x = [rsat(v, m.embedding_shift, 32) for v in m.embedding[token].tolist()]
        if m.positions is not None:
            row = m.positions[p % self.c.tokens_per_frame].tolist()
            x = [sat(a + rsat(b, m.position_shift, 32), 32) for a, b in zip(x, row, strict=True)]
        noter(0)(OpTag.EMBED, x)
        for i, layer in enumerate(m.layers):
            note = noter(i)
            note(OpTag.ATTN_NORM, y := norm(m, layer.attn_norm, x))
            act, ex = act8(y)
            note(OpTag.ATTN_ACT, act)
            y = [v for part in (layer.query, layer.key, layer.value) for v in linear(part, act, ex)]
            note(OpTag.QKV, y)
            context, scores = self.attention(layer, i, p, y, note)
            act, ex = act8(context)
            note(OpTag.OUT_ACT, act)
            note(OpTag.OUT, y := linear(layer.output, act, ex))
            note(OpTag.ATTN_RES, x := residual(x, *mantissas(y)))
            computes = self.compute[p, i] = self.computes(i, p, scores)
            slot = (i, p % self.c.tokens_per_frame)
            if not computes:
                note(OpTag.REPLAY_RES, x := residual(x, *self.slots[slot]))
                continue
            note(OpTag.MLP_NORM, y := norm(m, layer.mlp_norm, x))
            act, ex = act8(y)
            note(OpTag.MLP_ACT, act)
            note(OpTag.GATE, gate := linear(layer.gate, act, ex))
            note(OpTag.UP, up := linear(layer.up, act, ex))
            hidden = []
            for g, u in zip(gate, up, strict=True):
                t = rsat(g * sigmoid(rsat(g, layer.gate_shift, 16)), layer.silu_shift, 16)
                hidden.append(rsat(t * u, layer.product_shift, 32))
            note(OpTag.SWIGLU, hidden)
            act, ex = act8(hidden)
            note(OpTag.HIDDEN_ACT, act)
            note(OpTag.DOWN, y := linear(layer.down, act, ex))
            mm, e = self.slots[slot] = mantissas(y)
            note(OpTag.SLOT, [e, *mm])
            note(OpTag.MLP_RES, x := residual(x, mm, e))
        if not head:
            return None
        note = noter(self.c.layers)
        note(OpTag.FINAL_NORM, y := norm(m, m.final_norm, x))
        act, ex = act8(y)
        note(OpTag.FINAL_ACT, act)
        note(OpTag.LOGITS, logits := linear(m.head, act, ex))
        return self.sample(logits)

    def sample(self, logits):
        k, it, st, _ = self.sampling
        order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
        if k == 0:
            return order[0]
        order = order[:k]
        e = [exp2neg(min(2**25 - 1, shr((logits[order[0]] - logits[v]) * it, st))) for v in order]
        x = self.state
        x ^= x << 13 & 0xFFFFFFFF
        x ^= x >> 17
        x ^= x << 5 & 0xFFFFFFFF
        self.state = x
        r = (x * sum(e)) >> 32
        return next(order[j] for j in range(k) if sum(e[: j + 1]) > r)


def compare(model, lanes, prompt_length, total, gate, sampling=None, forced=None, head_all=False):
    """Run both and compare everything; returns the twin's result."""
    sampling = sampling or SamplingSettings()
    prompt = random_tokens(model.config, 3, lanes, prompt_length)
    result = Twin(model, lanes).generate(
        prompt, total, gate, sampling, trace=True, forced=forced, head_all=head_all
    )
    count = 0
    for lane in range(lanes):
        oracle = Oracle(model, lane, prompt_length, gate, sampling, forced)
        tokens = prompt[lane].tolist()
        for p in range(total - 1):
            token = oracle.step(p, tokens[p], head_all or p >= prompt_length - 1)
            if p >= prompt_length - 1:
                tokens.append(token)
        assert result.tokens[lane].tolist() == tokens
        for (p, layer, tag), values in oracle.trace.items():
            got = result.trace.get(p, layer, lane, tag).tolist()
            assert got == values, f"{tag.name} at position {p}, layer {layer}, lane {lane}"
        for (p, i), computes in oracle.compute.items():
            assert bool(result.compute[p, i, lane]) == computes
        count += len(oracle.trace)
    # The twin recorded nothing that the oracle does not have.
    assert len(result.trace) == count
    return result


ODD = ModelConfig(name="odd", vocab=17, hidden=10, layers=3, heads=6, kv_heads=2, head_dim=4, ffn=14,
                  tokens_per_frame=3, frames=5, frame_embedding=True)  # fmt: skip
CONFIGS = {"test": MODELS["test"], "test-gqa": MODELS["test-gqa"], "odd": ODD}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("uniform", [True, False])
def test_dense(name, uniform):
    config = CONFIGS[name]
    model = quantize(config, random_model(config, 7), uniform=uniform)
    compare(model, 2, 2, config.max_seq, GateSettings(kind="never"))


@pytest.mark.parametrize("definition", ["paper", "reference-code"])
@pytest.mark.parametrize("name", ["test-gqa", "odd"])
def test_tas(name, definition):
    config = CONFIGS[name]
    model = quantize(config, random_model(config, 11))
    weights = tuple(range(1, config.heads + 1))
    gate = GateSettings(definition=definition, head_weights=weights, threshold=0.1)
    result = compare(model, 3, 4, config.max_seq, gate, SamplingSettings(topk=3, temperature=1.5, seed=9))
    assert 0.1 < result.replay_ratio < 0.9


@pytest.mark.parametrize("warmup", [0, 1])
def test_always_and_prompt_logits(warmup):
    model = quantize(ODD, random_model(ODD, 1))
    gate = GateSettings(kind="always", warmup_frames=warmup)
    compare(model, 1, 5, 15, gate, SamplingSettings(topk=1, seed=3), head_all=True)


def test_forced():
    model = quantize(ODD, random_model(ODD, 1))
    forced = torch.rand((14, 3, 4), generator=torch.Generator().manual_seed(2)) < 0.5
    compare(model, 4, 1, 15, GateSettings(kind="forced"), forced=forced)


def test_chunked_products():
    """Vectors longer than the exact float32 sum allows."""
    config = ODD.replace(hidden=1030, ffn=2050, layers=1, vocab=8, heads=2, kv_heads=1, frames=2)
    model = quantize(config, random_model(config, 1))
    full = np.full_like
    layer = model.layers[0]
    # The largest possible sums: every weight 127; the norm's gain makes the activations large as well.
    down = dataclasses.replace(layer.down, weight=full(layer.down.weight, 127))
    gate = dataclasses.replace(layer.gate, weight=full(layer.gate.weight, 127))
    layer = dataclasses.replace(layer, down=down, gate=gate)
    compare(dataclasses.replace(model, layers=(layer,)), 1, 1, 3, GateSettings(kind="never"))


def wild_model(config, seed):
    """Return random integers with shifts at the limits: results overflow, vanish and saturate."""
    rng = np.random.default_rng(seed)

    def linear(out, width):
        weight = rng.integers(-127, 128, (out, width), dtype=np.int8)
        scale = np.minimum(65535, np.exp2(rng.uniform(0, 16, out))).astype(np.uint16)
        return QuantizedLinear(weight=weight, scale=scale, shift=int(rng.choice([9, 16, 20, 25, 30, 47])))

    def gains():
        gain = rng.integers(-32768, 32768, config.hidden).astype(np.int16)
        return QuantizedNorm(gain=gain, shift=int(rng.choice([0, 8, 15, 30])))

    def layer():
        c = config
        return QuantizedLayer(
            attn_norm=gains(), query=linear(c.q_dim, c.hidden), key=linear(c.kv_dim, c.hidden),
            value=linear(c.kv_dim, c.hidden), output=linear(c.hidden, c.q_dim), mlp_norm=gains(),
            gate=linear(c.ffn, c.hidden), up=linear(c.ffn, c.hidden), down=linear(c.hidden, c.ffn),
            score_shift=int(rng.integers(9, 48)), context_shift=int(rng.integers(9, 48)),
            gate_shift=int(rng.integers(0, 30)), silu_shift=int(rng.integers(0, 40)),
            product_shift=int(rng.integers(0, 40)),
        )  # fmt: skip

    def table(rows):
        values = rng.integers(-32768, 32768, (rows, config.hidden)).astype(np.int16)
        values[0] = 0
        return values

    return QuantizedModel(
        config=config, embedding=table(config.vocab), embedding_shift=int(rng.choice([-16, -3, 0])),
        positions=table(config.tokens_per_frame) if config.frame_embedding else None,
        position_shift=-16 if config.frame_embedding else 0,
        rope=rng.integers(-32768, 32768, (config.max_seq, config.head_dim)).astype(np.int16),
        layers=tuple(layer() for _ in range(config.layers)), final_norm=gains(), head=linear(config.vocab,
        config.hidden), eps=int(rng.choice([0, 1, 2**32 - 1])), eps_shift=int(rng.integers(0, 9)),
        residual_fraction=16, logit_fraction=int(rng.integers(-16, 25)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_wild_integers(seed):
    """Any integers that the format admits give the same as the law says, however absurd."""
    config = ODD.replace(frame_embedding=seed % 2 == 1, layers=2, frames=3)
    gate = GateSettings(kind=("tas", "always")[seed // 2 % 2], threshold=float(seed % 3 - 1))
    compare(
        wild_model(config, seed),
        2,
        2,
        9,
        gate,
        SamplingSettings(topk=seed % 4, temperature=0.01 * 10 ** (seed % 5)),
    )


def test_comparison_bites():
    """One changed weight must be noticed."""
    model = quantize(ODD, random_model(ODD, 1))
    other = model.layers[2].down.weight.copy()
    other[3, 5] += -1 if other[3, 5] > 0 else 1
    layer = dataclasses.replace(model.layers[2], down=dataclasses.replace(model.layers[2].down, weight=other))
    changed = dataclasses.replace(model, layers=(*model.layers[:2], layer))
    assert changed.hash != model.hash
    prompt = random_tokens(ODD, 3, 1, 2)
    runs = [Twin(m, 1).generate(prompt, 4, trace=True).trace for m in (model, changed)]
    different = {b.tag for a, b in zip(*runs, strict=True) if not np.array_equal(a.values, b.values)}
    assert OpTag.DOWN in different and OpTag.UP not in {
        b.tag
        for a, b in zip(*runs, strict=True)
        if not np.array_equal(a.values, b.values) and b.position == 0
    }
