"""docs/numerics.md once more: plain Python integers, one lane, one element at a time.

Slow and simple on purpose.  It shares nothing with the twin but the ROM tables.
"""

from collections import defaultdict

from fastcar_hw.numerics.tables import exp2neg_table, rsqrt_table, sigmoid_table
from fastcar_sw.compiler.ops import OpTag


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
    return [rsat(rsat(v * r, h - 14, 32) * g, gains.shift, 32) for v, g in zip(xm, gains.gain.tolist(), strict=True)]


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
        return self.sample(logits) if p + 1 >= self.prompt else None

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
