"""The comparison must find what is wrong, and where."""

import dataclasses
import json

import numpy as np
import pytest

import fastcar_hw.numerics.sigmoid as sigmoid
from fastcar_sw.compare import compare
from fastcar_sw.compiler.decompile import quantized_model
from fastcar_sw.engines.link import EngineError
from fastcar_sw.image import ImageError


def damaged(image, offset, mask):
    memory = bytearray(image.memory)
    memory[offset] ^= mask
    return dataclasses.replace(image, memory=bytes(memory))


def test_every_kind_of_corrupted_result_is_found(video):
    hardware, twin = video().hardware(), video().twin()
    assert compare(hardware, twin).difference is None
    number = len(hardware.trace) // 2
    hardware.trace.data[number, 0] ^= 1
    found = compare(hardware, twin).difference
    assert (found.layer, found.lane) == (hardware.trace.layer[number], hardware.trace.lane[number])
    assert found.expected ^ 1 == found.actual
    hardware.trace.data[number, 0] ^= 1
    hardware.compute[3, 1, 0] ^= True
    found = compare(hardware, twin).difference
    assert (found.operation, found.position, found.layer) == ("DECISION", 3, 1)
    hardware.compute[3, 1, 0] ^= True
    hardware.tokens[0, -1] ^= 1
    assert compare(hardware, twin).difference.operation == "TOKEN"


def test_missing_surplus_and_truncated_operations_are_found(video):
    hardware, twin = video().hardware(), video().twin()
    trace = hardware.trace

    def with_words(keep):
        return compare(dataclasses.replace(hardware, trace=trace[keep]), twin).difference

    assert with_words(np.ones(len(trace), dtype=bool)) is None
    number = int(np.flatnonzero(trace.tag == 15)[-1])  # a word of ATTN_OUT
    assert with_words(np.arange(len(trace)) != number).operation == "ATTN_OUT"
    assert with_words(trace.tag != 21).operation == "GATE"
    assert with_words(np.sort(np.append(np.arange(len(trace)), number))).operation == "ATTN_OUT"
    assert with_words(np.arange(len(trace)) < len(trace) // 2) is not None
    assert with_words(np.zeros(len(trace), dtype=bool)) is not None


def test_a_corrupted_weight_is_found(video):
    config, _, image, layout = video().parts
    offset = image.sections["layers"][0] + layout.layer_sections["gate"][0] + 2 * layout.beat
    bad = damaged(image, offset, 0x40)
    assert compare(video().hardware(image=bad), video().twin()).difference.operation == "GATE"
    with pytest.raises(ImageError, match="must hold the model"):
        quantized_model(bad)


def test_a_corrupted_rope_table_is_found(video):
    image = video().parts[2]
    bad = damaged(image, image.sections["rope"][0] + 2 * 8, 0x40)
    assert compare(video().hardware(image=bad), video().twin()).difference.operation in ("ROPE_Q", "ROPE_K")


def test_a_corrupted_table_of_the_hardware_is_found(video, monkeypatch):
    """One entry of a ROM of the RTL is wrong; the twin keeps the true table."""
    base, slope = sigmoid.sigmoid_table()
    twin = video().twin()
    monkeypatch.setattr(sigmoid, "sigmoid_table", lambda: ((base[0] + 64, *base[1:]), slope))
    assert compare(video(engine="pysim").hardware(), twin).difference.operation == "SWIGLU"


def test_a_corrupted_instruction_is_found(video):
    """Another operation code: each one stops the engine, or the comparison finds it."""
    image, twin = video().parts[2], video().twin()
    listing = image.listing()
    start, _ = image.sections["program"]
    rng = np.random.default_rng(9)
    traced = [n for n, line in enumerate(listing) if "tag=" in line and "if=" not in line]
    for number in rng.choice(traced, 6, replace=False):
        bad = damaged(image, start + 16 * int(number), 1)
        try:
            difference = compare(video().hardware(image=bad), twin).difference
        except EngineError:
            continue
        assert difference is not None, listing[number]


def test_an_image_gives_its_model_back(video):
    _, model, image, _ = video(accelerator="test-gqa", model="test-gqa").parts
    again = quantized_model(image)
    assert again.hash == model.hash
    assert json.dumps(again.constants()) == json.dumps(model.constants())
