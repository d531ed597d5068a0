"""Quantization loss of the shipped video model; skipped while the package has none."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import kl_div

import fastcar_sw
from fastcar_hw.presets import MODELS
from fastcar_sw.quantize import calibrate, quantize
from fastcar_sw.twin import Twin

CONFIG = MODELS["traffic"]


def test_quantization_loss():
    """On what the twin itself generates, its distribution is nearly that of the float model."""
    path = Path(fastcar_sw.__file__).parent / "models" / "traffic.safetensors"
    if not path.is_file():
        pytest.skip("no shipped model")
    state = load_file(path)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, 64, (2, CONFIG.tokens_per_frame), generator=generator)
    total = 3 * CONFIG.tokens_per_frame
    model = quantize(CONFIG, state, Twin(quantize(CONFIG, state, prompt), 2).generate(prompt, total).tokens)
    run = Twin(model, 2).generate(prompt, total, head_all=True)
    _, exact = calibrate(CONFIG, state, run.tokens)
    # Frames that the model made: the prompt is noise.
    first = CONFIG.tokens_per_frame
    want = exact[:, first:-1].double().log_softmax(-1)
    got = (run.logits[first:].double().transpose(0, 1) * 2.0**-model.logit_fraction).log_softmax(-1)
    assert float(kl_div(got, want, log_target=True, reduction="none").sum(-1).mean()) < 0.05
    assert float((got.argmax(-1) == want.argmax(-1)).double().mean()) > 0.9
