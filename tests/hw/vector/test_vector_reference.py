"""The reference of the vector tests against the twin: two readings of docs/numerics.md, neither of which is the RTL."""

import random
from types import SimpleNamespace

import numpy as np
import torch
import vector_reference as reference

from fastcar_sw.quantized import QuantizedNorm
from fastcar_sw.twin import rounding
from fastcar_sw.twin.attention import rotate
from fastcar_sw.twin.functions import Functions, reciprocal
from fastcar_sw.twin.mlp import MLP
from fastcar_sw.twin.norm import Norm, add_mantissas, mantissas

RNG = random.Random(1)
TABLES = Functions()


def signed(bits: int, count: int) -> list[int]:
    """Values of all sizes."""
    limit = 1 << (bits - 1)
    return [limit - 1, -limit, 0, *(RNG.randrange(-limit, limit) >> RNG.randrange(bits) for _ in range(count - 3))]


def test_functions():
    d = [0, 4095, 4096, 16 * 4096, 17 * 4096, (1 << 25) - 1, *(RNG.randrange(1 << 17) for _ in range(500))]
    assert TABLES.exp2neg(torch.tensor(d)).tolist() == [reference.exp2neg(x) for x in d]
    z = signed(16, 500)
    assert TABLES.sigmoid(torch.tensor(z)).tolist() == [reference.sigmoid(x) for x in z]
    v = [0, 1, (1 << 48) - 1, *(RNG.randrange(1 << 48) >> RNG.randrange(48) for _ in range(500))]
    r, h = TABLES.rsqrt(torch.tensor(v))
    assert list(zip(r.tolist(), h.tolist(), strict=True)) == [reference.rsqrt(x) for x in v]
    s = [1 << 15, 1 << 30, *(RNG.randrange(1 << 15, 1 << 31) for _ in range(500))]
    rc, b = reciprocal(torch.tensor(s))
    assert list(zip(rc.tolist(), b.tolist(), strict=True)) == [reference.reciprocal(x) for x in s]


def test_rounding():
    x = signed(46, 200)
    for k in (-64, -17, -16, -1, 0, 1, 5, 46, 47, 48, 63):
        got = rounding.round_shift_saturate(torch.tensor(x), k, 32).tolist()
        assert got == [reference.rsat(v, k) for v in x]
    for size in [0, *(1 << k for k in range(32)), *((1 << k) - 1 for k in range(32))]:
        for bits in (8, 16):
            assert rounding.exponent(torch.tensor(size), bits).item() == reference.exponent(size, bits)


def test_norm():
    for scale in (0, 6, 14, 20):
        x = [v >> scale for v in signed(32, 64)]
        gain = np.array(signed(16, 64), dtype=np.int16)
        for shift, e0 in ((14, 0), (20, (1 << 40) - 1), (3, 12345)):
            twin = Norm(QuantizedNorm(gain=gain, shift=shift), e0, TABLES)(torch.tensor([x]))
            assert twin[0].tolist() == reference.norm(x, gain.tolist(), e0, shift)


def test_rotation():
    y, table = signed(32, 64), signed(16, 64)
    twin = rotate(torch.tensor(y), torch.tensor(table[0::2]), torch.tensor(table[1::2]))
    assert twin.tolist() == [reference.sat(v, 32) for v in reference.rotate(y, table)]


def test_swiglu():
    gate, up = signed(32, 200), signed(32, 200)
    for shifts in ((8, 20, 12), (-3, 30, 0), (20, 31, 31)):
        twin = MLP._swiglu(SimpleNamespace(_shifts=shifts, _functions=TABLES), torch.tensor(gate), torch.tensor(up))
        assert twin.tolist() == [reference.sat(v, 32) for v in reference.swiglu(gate, up, *shifts)]


def test_residual():
    for scale in (0, 8, 20):
        y, x = [v >> scale for v in signed(32, 64)], signed(32, 64)
        m, e = mantissas(torch.tensor([y]))
        exponent = reference.exponent(reference.magnitude(y), 16)
        assert e.item() == exponent
        assert m[0].tolist() == [reference.quant(v, exponent, 16) for v in y]
        total = [reference.sat(a + (b << exponent), 32) for a, b in zip(x, m[0].tolist(), strict=True)]
        assert add_mantissas(torch.tensor([x]), m, e)[0].tolist() == total
