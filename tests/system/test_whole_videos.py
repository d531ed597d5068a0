"""Whole videos: the RTL against the twin, every integer of every operation."""

import itertools

import numpy as np
import pytest

from fastcar_hw.config import ConfigError
from fastcar_hw.presets import accelerator_preset
from fastcar_sw.compare import compare
from fastcar_sw.engines.link import MemorySettings
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import compile_image
from fastcar_sw.sampling import SamplingSettings

#: One core and one lane; two cores of two rows; two passes with an odd lane; grouped-query attention.
SHAPES = {"test": ("test", 1), "test-2x2": ("test", 4), "test-passes": ("test", 3), "test-gqa": ("test-gqa", 2)}
GATES = {
    "never": GateSettings(kind="never"),
    "always": GateSettings(kind="always"),
    "always after a frame": GateSettings(kind="always", warmup_frames=1),
    "tas": GateSettings(kind="tas", threshold=0.0),
    "tas per layer": GateSettings(kind="tas", threshold=(0.5, -0.5)),
    "reference code": GateSettings(kind="tas", definition="reference-code", threshold=0.0),
}


def check(video):
    hardware, twin = video.hardware(), video.twin()
    result = compare(hardware, twin)
    assert result.difference is None, str(result.difference)
    assert result.tokens == video.lanes * video.total
    assert result.operations > 30 * video.lanes * (video.total - 1)
    assert result.decisions == twin.compute.numel()
    layers = twin.compute.shape[1]
    # DRS: at most two cycles a lane, a layer and a position.
    assert hardware.counters["drs_cycles"] <= 2 * video.lanes * layers * (video.total - 1)
    assert hardware.replayed.sum() == (~twin.compute).sum()
    assert hardware.eligible.sum() == twin.eligible.sum() * layers * video.lanes
    return hardware, twin


@pytest.mark.parametrize("accelerator", SHAPES)
def test_rtl_equals_twin(video, accelerator):
    """Every gate, quick and slow memories, two prompts: one build a shape."""
    model, lanes = SHAPES[accelerator]
    memories = itertools.cycle(
        [
            MemorySettings(),
            MemorySettings(latency=1, stall=0.3, seed=5),
            MemorySettings(latency=90, beats_per_cycle=0.4),
        ]
    )
    mixed = set()
    for seed, (name, gate) in enumerate(GATES.items()):
        _, twin = check(video(accelerator=accelerator, model=model, lanes=lanes, total=12, gate=gate, seed=seed,
                              memory=next(memories)))  # fmt: skip
        replayed = (~twin.compute[twin.eligible]).float().mean()
        if 0 < replayed < 1:
            mixed.add(name)
        if name == "always":
            assert replayed == 1
    assert mixed & {"tas", "tas per layer", "reference code"}, "no gate mixed replay and compute"


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_fewer_lanes_than_the_hardware_has(video, lanes):
    check(video(accelerator="test-2x2", lanes=lanes, gate=GATES["tas"], seed=lanes))


def test_the_whole_cache_is_filled(video):
    check(video(total=16, gate=GATES["tas"]))


def test_a_static_map_gives_the_same_tokens(video):
    rng = np.random.default_rng(4)
    forced = rng.random((9, 2, 4)) < 0.5
    settings = dict(accelerator="test-2x2", lanes=4, total=9, gate=GateSettings(kind="forced"), forced=forced)
    dynamic, _ = check(video(**settings))
    static, _ = check(video(**settings, static_map=True))
    assert np.array_equal(dynamic.tokens, static.tokens)


@pytest.mark.parametrize("seed", range(3))
def test_forced_decisions_and_top_k_sampling(video, seed):
    rng = np.random.default_rng(seed)
    forced = rng.random((11, 2, 4)) < 0.5
    sampling = SamplingSettings(topk=1 + 3 * seed, temperature=0.5 + seed, seed=seed)
    check(video(accelerator="test-2x2", lanes=4, total=12, gate=GateSettings(kind="forced"), forced=forced,
                sampling=sampling, memory=MemorySettings(stall=0.1, seed=seed)))  # fmt: skip


def test_logits_of_the_prompt_do_not_disturb_the_sampler(video):
    _, twin = check(video(total=8, head_all=True, sampling=SamplingSettings(topk=3, seed=2)))
    assert len(twin.logit_positions) == 7


def test_a_video_of_one_token_decodes_nothing(video):
    hardware = video(prompt=1, total=1).hardware()
    assert hardware.counters["beats_weights"] == 0 and not len(hardware.trace)


def test_amaranths_simulator_gives_the_same(video):
    """Both engines, both compared with the twin: the Verilog does what the Amaranth design does."""
    settings = dict(accelerator="test", gate=GATES["always"], total=7, memory=MemorySettings(latency=7))
    slow, _ = check(video(**settings, engine="pysim"))
    fast, _ = check(video(**settings, engine="verilator"))
    assert np.array_equal(slow.tokens, fast.tokens)
    for name in ("data", "tag", "addr", "count", "lane", "layer"):
        assert np.array_equal(getattr(slow.trace, name), getattr(fast.trace, name))
    # Only the answers to writes come at other times.
    assert slow.counters["macs"] == fast.counters["macs"]


def test_cycle_counts(video):
    """What the documentation states; a change here is a change of the product's speed."""
    run, _ = check(video(total=7))
    c = run.counters
    assert c["drs_cycles"] == 2 * 2 * 6
    assert c["beats_weights"] == 3792 and c["macs"] > 0


def test_as_many_lanes_as_there_can_be(video):
    case = video(accelerator="test-wide", lanes=32, total=7, gate=GATES["tas"])
    check(case)
    # Loads would wait for ever in a shorter queue (found by simulation), so the compiler refuses it.
    config = accelerator_preset("test-wide")
    for change in ({"load_queue": 3}, {"weight_fifo_depth": 128}):
        with pytest.raises(ConfigError, match="load_queue must be at least 36"):
            compile_image(case.parts[1], config.replace(**change))
