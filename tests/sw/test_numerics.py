"""Rounding and table functions of the twin against Python integers and float64, with the bounds of docs/numerics.md."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcar_sw.twin.functions import Functions, reciprocal
from fastcar_sw.twin.linear import CHUNK, activate, integer_matmul
from fastcar_sw.twin.norm import add_mantissas, mantissas
from fastcar_sw.twin.rounding import (
    bit_length,
    exponent,
    quantize,
    round_shift,
    round_shift_saturate,
    saturate,
)

FUNCTIONS = Functions()


def _shr(x: int, k: int) -> int:
    return (x + 2 ** (k - 1)) >> k if k > 0 else x << -k


@given(st.integers(-(2**46), 2**46 - 1), st.integers(-80, 80), st.sampled_from([16, 24, 32]))
def test_round_shift_saturate(x, k, bits):
    """Numbers and tensors as shift counts give what Python's integers give."""
    clamped = max(-16, min(47, k))
    want = max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, _shr(x, clamped)))
    tensor = torch.tensor([x])
    assert round_shift_saturate(tensor, k, bits).item() == want
    assert round_shift_saturate(tensor, torch.tensor([k]), bits).item() == want
    assert (
        round_shift(tensor, torch.tensor([clamped])).item() == round_shift(tensor, clamped).item() == _shr(x, clamped)
    )


def test_halves_go_up():
    x = torch.tensor([-3, -1, 1, 3, 5])
    assert round_shift(x, 1).tolist() == [-1, 0, 1, 2, 3]
    assert saturate(torch.tensor([-129, -128, 127, 128]), 8).tolist() == [-128, -128, 127, 127]


def test_bit_length():
    edges = [0, 1] + [2**n + d for n in range(1, 53) for d in (-1, 0, 1)]
    assert bit_length(torch.tensor(edges)).tolist() == [v.bit_length() for v in edges]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8), st.sampled_from([8, 16]))
def test_dynamic_exponent(values, bits):
    """The largest element keeps all bits but one at least, and the error is at most one unit (half, unless clamped)."""
    y = torch.tensor(values)
    a = y.abs().amax(-1, keepdim=True)
    e = exponent(a, bits)
    q = quantize(y, e, bits)
    assert int(q.abs().max()) <= 2 ** (bits - 1) - 1
    assert int(e) == max(0, int(a).bit_length() - bits + 1)
    assert bool(((q << e) - y).abs().max() <= (1 << e)[0])
    if int(e) > 0:
        assert int(q.abs().max()) >= 2 ** (bits - 2)


def test_exp2neg_exhaustive():
    """At most 1.5 units of 2^-15 for every argument that gives more than 0, and 0 beyond."""
    d = torch.arange(18 << 12)
    got = FUNCTIONS.exp2neg(d).double()
    assert float((got - 2.0 ** (15 - d.double() / 4096)).abs().max()) <= 1.5
    assert FUNCTIONS.exp2neg(torch.tensor([0])).item() == 32768
    assert FUNCTIONS.exp2neg(torch.tensor([17 << 12, 2**25 - 1])).tolist() == [0, 0]
    # Monotonic, so that a larger score never weighs less.
    assert bool((got[1:] <= got[:-1]).all())


def test_sigmoid_exhaustive():
    """At most 3 units of 2^-15 for all int16."""
    z = torch.arange(-32768, 32768)
    got = FUNCTIONS.sigmoid(z)
    exact = torch.sigmoid(z.double() / 2048) * 32768
    assert float((got - exact).abs().max()) <= 3
    assert bool((got[1:] >= got[:-1]).all()) and int(got.min()) >= 0 and int(got.max()) <= 32768


def test_rsqrt_bound():
    """Relative error at most 1e-4: exhaustive for small arguments, random ones and powers of two for large ones."""
    rng = np.random.default_rng(0)
    small = np.arange(1, 1 << 18)
    large = np.exp2(rng.uniform(18, 48, 1 << 18)).astype(np.int64)
    edges = np.array([2**n + d for n in range(2, 48) for d in (-1, 0, 1)])
    v = torch.tensor(np.concatenate((small, large, edges, [2**48 - 1])))
    r, h = FUNCTIONS.rsqrt(v)
    relative = r.double() * 2.0 ** (-16 - h.double()) * v.double().sqrt() - 1
    assert float(relative.abs().max()) <= 1e-4
    assert int(r.min()) > 0 and int(r.max()) <= 65535
    assert [t.item() for t in FUNCTIONS.rsqrt(torch.tensor([0]))] == [65535, 0]


def test_reciprocal():
    """Exact division, held in 16 bits."""
    totals = torch.tensor([1, 2, 3, 32768, 32769, 65535, 65536, 2**30, 2**30 - 1, 123456789])
    rc, b = reciprocal(totals)
    assert b.tolist() == [t.bit_length() for t in totals.tolist()]
    assert rc.tolist() == [min(65535, 2 ** (t.bit_length() + 15) // t) for t in totals.tolist()]


def test_products_are_exact_at_the_limit():
    """Sums of the largest magnitude and of any length come out exactly."""
    for k in (CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5):
        a = torch.full((2, k), 127.0)
        b = torch.full((k, 3), -127.0)
        # An odd total, which float32 could not hold beyond 2^24.
        a[:, -1] = 1.0
        b[-1] = 1.0
        assert integer_matmul(a, b).unique().tolist() == [-127 * 127 * (k - 1) + 1]


def test_activation():
    act = activate(torch.tensor([[0, 0], [127, -128], [2**31 - 1, -(2**31)]]))
    assert act.exponent[:, 0].tolist() == [0, 1, 25]
    assert act.values.tolist() == [[0, 0], [64, -64], [64, -64]]


def test_residual_saturates():
    """The residual stream clamps to 32 bits instead of wrapping."""
    x = torch.tensor([[2**31 - 5, -(2**31) + 5]])
    m, e = mantissas(torch.tensor([[2**30, -(2**30)]]))
    assert add_mantissas(x, m, e).tolist() == [[2**31 - 1, -(2**31)]]
    m, e = mantissas(torch.tensor([[2**31 - 1, -(2**31)]]))
    assert e.item() == 17 and m.tolist() == [[16384, -16384]]
