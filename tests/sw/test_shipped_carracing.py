"""The second shipped model: trained by the same command on a video of another kind, and fit for the hardware."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fastcar_hw.config import AcceleratorConfig
from fastcar_sw.image import compile_image
from fastcar_sw.model import load_model, shipped_model
from fastcar_sw.quality import copy_accuracy, kl_divergence, teacher_forced
from fastcar_sw.quantize import quantize
from fastcar_sw.replay_reference import generate, teacher_forced_run
from fastcar_sw.twin import Twin
from fastcar_sw.video.carracing import drive

FRAMES = 4


@pytest.fixture(scope="module")
def model():
    return load_model(shipped_model("carracing"))


@pytest.fixture(scope="module")
def video(model):
    """Return two videos that the model dreams of a straight road, int64 (2, positions)."""
    frame = np.full((1, 64, 64, 3), (102, 204, 102), np.uint8)
    frame[:, :, 24:40] = 105
    start = torch.from_numpy(model.tokenizer.encode(frame)).expand(2, -1)
    return generate(model.decoder(), start, FRAMES * start.shape[1], topk=8, seed=1).tokens


@pytest.fixture(scope="module")
def integers(model, video):
    return quantize(model.config, model.state, video)


def test_shapes_card_and_size(model):
    path = shipped_model("carracing")
    assert path.stat().st_size <= 5_000_000
    assert path.with_suffix(".md").read_text(encoding="utf-8").startswith("# Model card: `carracing`")
    config = model.config
    assert (config.vocab, config.tokens_per_frame, config.frames) == (512, 64, 8)
    assert (config.hidden, config.layers, config.heads, config.head_dim, config.ffn) == (128, 4, 4, 32, 352)
    assert model.tokenizer.vocab == 512 and model.tokenizer.frame_shape == (64, 64)
    assert model.training["seed"] == 0 and model.training["steps"] >= 1


def test_it_compiles_for_an_accelerator(model, integers):
    accelerator = AcceleratorConfig.for_model(
        model.config, name="carracing", cores=2, rows=1, cols=32, lanes=4, vector_width=8, weight_fifo_depth=1024
    )
    accelerator.check_model(model.config)
    image, layout = compile_image(integers, accelerator)
    assert image.model == model.config and image.model_hash == integers.hash
    assert layout.image_bytes >= 4 * model.config.layers * 128 * 128


def test_the_twin_predicts_what_the_float_model_predicts(model, video, integers):
    n, total = model.config.tokens_per_frame, video.shape[1]
    run = Twin(integers, len(video)).generate(video[:, :n], total, head_all=True, teacher=video)
    logits = run.logits.numpy().transpose(1, 0, 2)[:, n:]
    with torch.no_grad():
        exact = model.decoder()(video[:, :-1]).numpy()[:, n:]
    assert kl_divergence(logits, exact, 2.0**-integers.logit_fraction) < 0.05
    assert (logits.argmax(-1) == exact.argmax(-1)).mean() > 0.9


@pytest.mark.skipif(find_spec("gymnasium") is None or find_spec("Box2D") is None, reason="needs gymnasium[box2d]")
def test_it_beats_copying_on_a_track_it_never_saw(model):
    config, n = model.config, model.config.tokens_per_frame
    frames = drive(2 * config.frames, seed=123, episode=2 * config.frames)[0]
    tokens = model.tokenizer.encode(frames).reshape(2, -1)
    logits = teacher_forced_run(model.decoder(), torch.from_numpy(tokens), tokens.shape[1]).logits.numpy()
    assert teacher_forced(logits, tokens, n).accuracy > copy_accuracy(tokens, n) + 0.1
