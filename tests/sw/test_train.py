"""Training: learns, repeats itself with a seed, takes any video, refuses nonsense."""

import math

import numpy as np
import pytest
import torch

from fastcar_sw.model import load_model
from fastcar_sw.muon import Muon, make_muon, orthogonalize
from fastcar_sw.train import TrainError, TrainOptions, train
from fastcar_sw.video.clips import ClipError
from fastcar_sw.video.io import VideoError

#: A model that is trained in seconds.
SMALL = {
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "ffn": 64,
    "batch": 2,
    "frames": 3,
    "threads": 1,
}
VIDEO = {"size": (8, 8), "patch": 4, "vocab": 16, "name": "square"}


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """A bright square that wanders over a dark ground."""
    frames = np.full((120, 8, 8, 3), 20, np.uint8)
    for t in range(120):
        x = 4 * (t % 2)
        y = 4 * (t // 2 % 2)
        frames[t, y : y + 4, x : x + 4] = (250, 200, 60)
    path = tmp_path_factory.mktemp("video") / "square.npy"
    np.save(path, frames)
    return path


def test_learns_a_video(tmp_path, video):
    seen = []
    options = TrainOptions(
        output=tmp_path / "m.safetensors", videos=(video,), steps=80, log_every=20, **SMALL, **VIDEO
    )
    result = train(options, seen.append)
    assert result.metrics["accuracy"] > 0.95 > result.metrics["copy_accuracy"]
    assert result.metrics["cross_entropy"] < 0.3 and result.metrics["codebook_psnr"] == math.inf
    assert [step for step, _ in result.history] == [20, 40, 60, 80]
    assert result.history[-1][1] < result.history[0][1] / 3
    assert [p.phase for p in seen][0] == "read" and [p.phase for p in seen][-1] == "evaluate"
    assert {"read", "train", "evaluate"} <= {p.phase for p in seen}
    assert seen[-1].seconds <= result.seconds
    model = load_model(result.path)
    assert model.config == options.config and model.config.tokens_per_frame == 4
    assert model.training["data"] == ["square.npy"] and model.training["steps"] == 80
    assert all(torch.equal(model.state[k], v) for k, v in result.model.state.items())


def test_traffic_is_the_default_and_a_seed_decides_everything(tmp_path):
    small = SMALL | {"hidden": 16, "ffn": 16}
    runs = [
        train(TrainOptions(output=tmp_path / f"{i}.safetensors", seed=seed, steps=3, log_every=1, **small))
        for i, seed in enumerate((1, 1, 2))
    ]
    first, same, other = ((tmp_path / f"{i}.safetensors").read_bytes() for i in range(3))
    assert first == same != other
    assert runs[0].history == runs[1].history != runs[2].history
    assert runs[0].metrics["codebook_psnr"] == math.inf
    assert runs[0].model.tokenizer.grid == (8, 8)


def test_stopping_from_the_progress_leaves_no_file_and_the_threads_as_they_were(tmp_path, video):
    before = torch.get_num_threads()

    def stop(report):
        if report.phase == "train":
            raise KeyboardInterrupt

    options = TrainOptions(
        output=tmp_path / "m.safetensors", videos=(video,), steps=9, log_every=1, **SMALL, **VIDEO
    )
    with pytest.raises(KeyboardInterrupt):
        train(options, stop)
    assert not list(tmp_path.iterdir()) and torch.get_num_threads() == before


def test_unusable_videos(tmp_path, video):
    options = {"output": tmp_path / "m.safetensors", "steps": 1, **SMALL, **VIDEO}
    with pytest.raises(VideoError, match="does not exist"):
        train(TrainOptions(videos=(tmp_path / "no.mp4",), **options))
    np.save(tmp_path / "short.npy", np.load(video)[:5])
    with pytest.raises(ClipError, match="at least 6 frames"):
        train(TrainOptions(videos=(tmp_path / "short.npy",), **options))


def test_a_diverging_training_says_so(tmp_path, video):
    options = {"output": tmp_path / "m.safetensors", "videos": (video,), "steps": 40, **SMALL, **VIDEO}
    with pytest.raises(TrainError, match="loss must stay finite"):
        train(TrainOptions(adam_rate=1e30, muon_rate=1e30, log_every=1, **options))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"steps": 0}, "steps"), ({"batch": 1.5}, "batch"), ({"seed": -1}, "seed"), ({"frames": 1}, "frames"),
        ({"hidden": 30, "heads": 4}, "hidden"), ({"muon_rate": -1.0}, "muon_rate"),
        ({"adam_rate": math.nan}, "adam_rate"), ({"size": (64, 60)}, "size"), ({"size": (32, 32)}, "traffic"),
        ({"patch": 4}, "traffic"), ({"stride": 2}, "traffic"), ({"threads": 0}, "threads"),
    ],
)  # fmt: skip
def test_options_are_checked(tmp_path, change, rule):
    with pytest.raises(TrainError, match=rule):
        TrainOptions(output=tmp_path / "m.safetensors", **change)


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12)])
def test_orthogonalize(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrix))
    assert 0.3 < values.min() and values.max() < 1.3


def test_own_muon_takes_the_steps_of_pytorchs():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    start = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    mine, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = Muon([mine], 0.1, 0.1), make_muon([theirs], 0.1, 0.1)
    for step in range(4):
        gradient = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 + step))
        for p, optimizer in zip((mine, theirs), optimizers, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
    # PyTorch iterates in bfloat16.
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0.02)
    assert (mine - start).abs().max() > 0.1
