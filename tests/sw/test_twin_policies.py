"""Gate and sampling settings, and the integers that they become."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcar_hw.presets import MODELS
from fastcar_sw.gates import GateError, GateSettings
from fastcar_sw.sampling import SamplingError, SamplingSettings, lane_seed, xorshift32
from fastcar_sw.twin.functions import Functions
from fastcar_sw.twin.sampler import Sampler

CONFIG = MODELS["test-gqa"]
FUNCTIONS = Functions()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "delta"}, "gate kind must be one of never, always, tas, forced, not 'delta'"),
        ({"definition": "other"}, "gate definition must be one of paper, reference-code, not 'other'"),
        ({"threshold": math.nan}, "threshold must be a number"),
        ({"threshold": "1"}, "threshold must be a number"),
        ({"threshold": True}, "threshold must be a number"),
        ({"threshold": (0.0, None)}, "threshold of layer 1 must be a number, not None"),
        ({"head_weights": [1, 2]}, "head_weights must be a tuple"),
        ({"head_weights": (1, 256)}, "weight of head 1 must be an integer in 0..255, not 256"),
        ({"head_weights": (0, 0)}, "sum of head_weights must be in 1..255, not 0"),
        ({"head_weights": (200, 100)}, "sum of head_weights must be in 1..255, not 300"),
        ({"warmup_frames": -1}, "warmup_frames must be an integer in 0..65536, not -1"),
        ({"warmup_frames": 1.0}, "warmup_frames must be an integer"),
    ],
)
def test_gate_errors(settings, message):
    with pytest.raises(GateError) as caught:
        GateSettings(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_thresholds():
    unit = math.log2(math.e) * 4096
    assert GateSettings(threshold=-2.5).integer_thresholds(CONFIG) == (math.floor(-2.5 * unit * 4 + 0.5),) * 2
    weighted = GateSettings(threshold=(1.0, -1.0), head_weights=(1, 2, 3, 4))
    assert weighted.integer_thresholds(CONFIG) == (math.floor(10 * unit + 0.5), math.floor(-10 * unit + 0.5))
    limits = GateSettings(threshold=(math.inf, -math.inf)).integer_thresholds(CONFIG)
    assert limits == (2**31 - 1, -(2**31))
    # No sum of saturated scores reaches the upper limit, so that infinity really never replays.
    assert 255 * (2**23 - 1) < limits[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": 65}, "topk must be an integer in 0..64, not 65"),
        ({"topk": -1}, "topk must be"),
        ({"temperature": 0.0}, "temperature must be a number in 0.001..1000, not 0.0"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"temperature": math.inf}, "temperature must be"),
        ({"seed": 1 << 32}, "seed must be an integer in 0..4294967295"),
        ({"seed": 1.5}, "seed must be"),
    ],
)
def test_sampling_errors(settings, message):
    with pytest.raises(SamplingError) as caught:
        SamplingSettings(**settings)
    assert message in str(caught.value)


@given(st.floats(1e-3, 1e3), st.integers(-16, 24))
def test_registers(temperature, fraction):
    """The factor keeps 16 significant bits, except where the shift is at its limit."""
    r = SamplingSettings(topk=3, temperature=temperature).registers(fraction)
    assert 0 <= r.inv_temperature <= 65535
    assert 0 <= r.temp_shift <= 63
    exact = math.log2(math.e) / temperature * 2.0 ** (12 - fraction)
    if exact <= 65535:
        assert r.inv_temperature / 2**r.temp_shift == pytest.approx(exact, rel=2e-5)
    else:
        assert (r.inv_temperature, r.temp_shift) == (65535, 0)


def test_greedy_takes_the_first_of_equals():
    sampler = Sampler(SamplingSettings().registers(10), 3, FUNCTIONS)
    logits = torch.tensor([[1, 5, 5, 5], [-(2**31), -(2**31), -(2**31), -(2**31)], [0, 1, 2**31 - 1, 2**31 - 1]])
    assert sampler(logits).tolist() == [1, 0, 2]


def test_topk_orders_equals_by_index():
    """With equal logits, the candidates are the first indices."""
    sampler = Sampler(SamplingSettings(topk=3, seed=1).registers(10), 1, FUNCTIONS)
    seen = {int(sampler(torch.full((1, 20), 7))) for _ in range(200)}
    assert seen == {0, 1, 2}


def test_topk_frequencies():
    """Tokens come as often as the softmax of the candidates says."""
    fraction, temperature = 16, 0.7
    natural = np.array([1.0, 0.2, -0.5, 0.9, -3.0, 0.0])
    sampler = Sampler(SamplingSettings(topk=4, temperature=temperature, seed=99).registers(fraction), 1, FUNCTIONS)
    logits = torch.tensor(np.round(natural * 2**fraction).astype(np.int64))[None]
    count = 6000
    got = np.bincount([int(sampler(logits)) for _ in range(count)], minlength=6) / count
    best = np.argsort(-natural)[:4]
    want = np.zeros(6)
    want[best] = np.exp(natural[best] / temperature)
    want /= want.sum()
    assert np.abs(got - want).max() < 0.02


def test_extreme_distances_vanish():
    sampler = Sampler(SamplingSettings(topk=2, temperature=0.001).registers(-16), 1, FUNCTIONS)
    logits = torch.tensor([[2**31 - 1, -(2**31)]])
    assert {int(sampler(logits)) for _ in range(50)} == {0}


def test_random_states():
    assert xorshift32(1) == 270369
    assert lane_seed(0x9E3779B9, 0) == 1
    states = {lane_seed(7, lane) for lane in range(32)}
    assert len(states) == 32
    assert 0 not in states
    x = 1
    for _ in range(1000):
        x = xorshift32(x)
        assert 0 < x < 2**32
