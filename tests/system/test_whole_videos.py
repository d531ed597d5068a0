"""Whole videos: the RTL against the twin, every integer of every operation."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from fastcar_hw.presets import accelerator_preset, model_preset
from fastcar_sw.compare import compare
from fastcar_sw.engines.pysim import EngineError, simulate
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import compile_image
from fastcar_sw.quantize import quantize, random_model
from fastcar_sw.sampling import SamplingSettings
from fastcar_sw.twin import Twin

PROMPT = 5


@cache
def case(accelerator, model_name):
    config = accelerator_preset(accelerator).replace(trace=True)
    model = quantize(model_preset(model_name), random_model(model_preset(model_name), 1))
    return config, model, *compile_image(model, config)


def run(accelerator, model_name, lanes, total, gate, sampling=None, forced=None, head_all=False, **options):
    config, model, image, layout = case(accelerator, model_name)
    prompt = np.random.default_rng(0).integers(0, model.config.vocab, (lanes, PROMPT))
    sampling = sampling or SamplingSettings()
    twin = Twin(model, lanes).generate(
        torch.tensor(prompt), total, gate, sampling, trace=True,
        forced=None if forced is None else torch.tensor(forced), head_all=head_all,
    )  # fmt: skip
    hardware = simulate(config, image, layout, model, prompt, total, gate, sampling, forced=forced, head_all=head_all,
                        **options)  # fmt: skip
    return hardware, twin


@pytest.mark.parametrize(
    ("accelerator", "model", "lanes", "total", "gate", "stall"),
    [
        ("test", "test", 1, 8, GateSettings(kind="always"), 0.0),
        ("test-2x2", "test", 3, 7, GateSettings(kind="tas", definition="reference-code"), 0.2),
        ("test-passes", "test", 3, 7, GateSettings(kind="tas", threshold=0.0), 0.0),
        ("test-gqa", "test-gqa", 2, 7, GateSettings(kind="tas", threshold=0.0), 0.0),
    ],
)
def test_rtl_equals_twin(accelerator, model, lanes, total, gate, stall):
    hardware, twin = run(accelerator, model, lanes, total, gate, stall=stall)
    result = compare(hardware, twin)
    assert result.difference is None, str(result.difference)
    assert result.tokens == lanes * total
    assert result.operations > 30 * (total - 1)
    decisions = [bool(x) for x in twin.compute.reshape(-1)]
    assert [compute for _, _, compute in hardware.compute] == decisions
    if gate.kind == "always":
        assert not all(decisions), "nothing was replayed: the case tests nothing"
    # DRS: at most two cycles a lane, a layer and a position.
    layers = twin.compute.shape[1]
    assert hardware.counters["drs_cycles"] <= 2 * lanes * layers * (total - 1)


def test_forced_decisions_and_top_k_sampling():
    rng = np.random.default_rng(3)
    forced = rng.random((7, 2, 4)) < 0.5
    gate = GateSettings(kind="forced")
    sampling = SamplingSettings(topk=4, temperature=1.5, seed=7)
    hardware, twin = run("test-2x2", "test", 4, 7, gate, sampling, forced=forced)
    result = compare(hardware, twin)
    assert result.difference is None, str(result.difference)


def test_logits_of_the_prompt_do_not_disturb_the_sampler():
    gate, sampling = GateSettings(kind="never"), SamplingSettings(topk=3, seed=2)
    hardware, twin = run("test", "test", 1, 8, gate, sampling, head_all=True)
    result = compare(hardware, twin)
    assert result.difference is None, str(result.difference)
    assert len(twin.logit_positions) == 7


def test_a_video_of_one_token_decodes_nothing():
    config, model, image, layout = case("test", "test")
    hardware = simulate(config, image, layout, model, np.array([[3]]), 1, GateSettings(kind="never"))
    assert hardware.counters["beats_weights"] == 0 and not hardware.records


def test_the_comparison_bites():
    hardware, twin = run("test", "test", 1, 6, GateSettings(kind="never"))
    assert compare(hardware, twin).difference is None
    number = len(hardware.records) // 2
    record = hardware.records[number]
    values = (record.values[0] ^ 1, *record.values[1:])
    hardware.records[number] = dataclasses.replace(record, values=values)
    found = compare(hardware, twin).difference
    assert found is not None and found.layer == record.layer and found.lane == record.lane
    hardware.records[number] = record
    hardware.tokens[0, -1] ^= 1
    assert compare(hardware, twin).difference.operation == "TOKEN"


def test_a_corrupted_weight_is_found():
    config, model, image, layout = case("test", "test")
    prompt = np.random.default_rng(0).integers(0, model.config.vocab, (1, PROMPT))
    twin = Twin(model, 1).generate(torch.tensor(prompt), 6, GateSettings(kind="never"), trace=True)
    memory = bytearray(image.memory)
    offset, _ = image.sections["layers"]
    memory[offset + layout.layer_sections["gate"][0] + 2 * layout.beat] ^= 0x40
    damaged = dataclasses.replace(image, memory=bytes(memory))
    hardware = simulate(config, damaged, layout, model, prompt, 6, GateSettings(kind="never"))
    assert compare(hardware, twin).difference.operation == "GATE"


def test_a_bus_error_stops_the_engine_and_says_where():
    config, model, image, layout = case("test", "test")
    prompt = np.random.default_rng(0).integers(0, model.config.vocab, (1, PROMPT))
    offset, _ = image.sections["layers"]
    with pytest.raises(EngineError, match="READ_BUS.*position 0, layer 0"):
        simulate(config, image, layout, model, prompt, 6, GateSettings(kind="never"), fail_at=offset + 100)


def test_a_token_outside_the_vocabulary_traps():
    config, model, image, layout = case("test", "test")
    prompt = np.full((1, PROMPT), model.config.vocab)
    with pytest.raises(EngineError, match="TRAP"):
        simulate(config, image, layout, model, prompt, 6, GateSettings(kind="never"))
