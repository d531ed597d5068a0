"""The procedural world, and the figures that are taken from videos."""

import math
import sys

import numpy as np
import pytest

from fastcar_sw.quality import copy_accuracy, kl_divergence, motion, teacher_forced
from fastcar_sw.video.carracing import drive
from fastcar_sw.video.clips import HELD_OUT_SEED, ClipError, TrafficClips, VideoClips, traffic_tokenizer
from fastcar_sw.video.io import VideoError, contact_sheet, read_video, resize, write_contact_sheet, write_gif
from fastcar_sw.video.metrics import change_rate, exact_share, psnr, ssim
from fastcar_sw.video.tokenizer import PatchTokenizer
from fastcar_sw.video.traffic import draw_scenes, generate, patch_dictionary


def test_shape_and_determinism():
    clips = generate(3, seed=5)
    assert clips.shape == (3, 8, 64, 64, 3) and clips.dtype == np.uint8
    assert np.array_equal(clips, generate(3, seed=5))
    # A scene depends on its own number only.
    assert np.array_equal(clips[2:], generate(1, seed=5, first_clip=2))
    assert not np.array_equal(clips, generate(3, seed=6))


def test_dictionary_is_exact_and_fits_the_vocabulary():
    dictionary = patch_dictionary()
    assert len({p.tobytes() for p in dictionary}) == len(dictionary) <= 256
    tokenizer = traffic_tokenizer()
    clips = generate(60, seed=7)
    tokens = tokenizer.encode(clips, exact=True)
    assert np.array_equal(tokenizer.decode(tokens), clips)
    # No dead entries: what is in the dictionary occurs.
    assert len(np.unique(tokenizer.encode(generate(400, seed=8, frames=2)))) > 0.95 * len(dictionary)


def test_rows_move_as_a_whole_on_a_torus():
    scenes = draw_scenes(20, seed=9)
    clips = scenes.render(5)
    moving = scenes.velocity != 0
    assert 0.4 < moving.mean() < 0.8
    roads = (scenes.waves[:, :, 0] == scenes.waves[:, :, 1]).all((-1, -2, -3)) & moving
    clip, row = np.argwhere(roads)[0]
    band = scenes.layer[clip, row, ..., 3] > 0
    for t in range(5):
        shifted = np.roll(band, t * scenes.velocity[clip, row], 1)
        colours = np.roll(scenes.layer[clip, row, ..., :3], t * scenes.velocity[clip, row], 1)
        assert np.array_equal(clips[clip, t, row * 8 : row * 8 + 8][shifted], colours[shifted])
    static = clips.reshape(20, 5, 8, 8, 64, 3).swapaxes(1, 2)[~moving]
    assert (static == static[:, :1]).all()


def test_motion_is_periodic():
    scenes = draw_scenes(4, seed=3)
    # Even speeds on 64 pixels: everything is where it was after 32 frames.
    assert np.array_equal(scenes.render(2), scenes.render(2, first=32))
    assert np.array_equal(scenes.render(3)[:, 1:], scenes.render(2, first=1))


def test_a_video_model_has_something_to_do():
    tokens = TrafficClips(8, seed=1).held_out(32)
    assert 0.5 < copy_accuracy(tokens, 64) < 0.72


def test_held_out_scenes_are_refused_for_training():
    with pytest.raises(ClipError, match="held-out"):
        TrafficClips(8, seed=HELD_OUT_SEED)
    clips = TrafficClips(2, seed=1)
    assert not np.array_equal(clips.train(4, 0), clips.train(4, 1))
    assert np.array_equal(clips.train(4, 1), TrafficClips(2, seed=1).train(4, 1))


def test_video_clips_keep_the_end_away():
    video = np.zeros((40, 2, 2, 3), np.uint8)
    video[:, 0, 0, 0] = np.arange(40)
    codebook = np.zeros((40, 2, 2, 3), np.uint8)
    codebook[:, 0, 0, 0] = np.arange(40)
    clips = VideoClips([video], PatchTokenizer(codebook, (1, 1)), frames=3, seed=0, stride=2)
    train, held = np.concatenate([clips.train(8, s) for s in range(8)]), clips.held_out(100)
    assert train.max() < 35 <= held.min()
    assert (np.diff(train, axis=1) == 2).all() and (np.diff(held, axis=1) == 2).all()
    with pytest.raises(ClipError, match="at least 10 frames"):
        VideoClips([video[:9]], PatchTokenizer(codebook, (1, 1)), frames=3, seed=0, stride=2)


def test_metrics():
    clips = generate(2, seed=1, frames=2)
    other = clips.copy()
    other[0, 0, 0, 0, 0] ^= 16
    assert psnr(clips, clips) == math.inf and ssim(clips, clips) == pytest.approx(1)
    assert psnr(clips, other) == pytest.approx(10 * math.log10(255**2 / (256 / clips.size)))
    assert 0.9 < ssim(clips, other) < 1
    with pytest.raises(ValueError, match="one shape"):
        psnr(clips, clips[:1])
    tokens = np.array([[[0, 1], [0, 2], [0, 2]]])
    assert change_rate(tokens) == 0.25 and change_rate(tokens, 2) == 0
    wrong = tokens.copy()
    wrong[0, 2, 0] = 5
    # Only the second row moves, and it is right.
    assert exact_share(wrong, tokens, rows=2) == 1
    wrong[0, 2, 1] = 5
    assert exact_share(wrong, tokens, rows=2) == 0


def test_quality_figures_against_hand_made_logits():
    tokens = np.array([[0, 1, 2, 0, 2, 1]])
    logits = np.zeros((1, 5, 3))
    logits[0, np.arange(5), tokens[0, 1:]] = 3
    logits[0, 4] = [3, 0, 0]
    found = teacher_forced(logits, tokens, tokens_per_frame=2, first_frame=2)
    z = math.log(math.exp(3) + 2)
    assert found.accuracy == 0.5 and found.tokens == 2
    assert found.cross_entropy == pytest.approx((z - 3 + z) / 2)
    scaled = teacher_forced((logits * 256).astype(np.int32), tokens, 2, scale=1 / 256)
    assert scaled.cross_entropy == pytest.approx(found.cross_entropy)
    assert copy_accuracy(tokens, 2) == 0.5
    assert kl_divergence(logits, logits + 1) == pytest.approx(0)
    assert kl_divergence(logits[:, :1], logits[:, 1:2]) > 1
    with pytest.raises(ValueError, match="first_frame"):
        teacher_forced(logits, tokens, 2, first_frame=3)
    moved = motion(np.array([[0, 1, 0, 1, 0, 2]]), tokens, 2)
    assert moved.sampled == 0.5 and moved.real == 0.5 and moved.relative == 0


def test_files(tmp_path):
    clips = generate(2, seed=2, frames=3)
    write_gif(tmp_path / "new" / "a.gif", clips[0], scale=2)
    back = read_video(tmp_path / "new" / "a.gif")
    assert back.shape == (3, 128, 128, 3)
    assert psnr(back[:, ::2, ::2], clips[0]) > 35
    assert np.array_equal(back[:, ::2], back[:, 1::2])
    np.save(tmp_path / "a.npy", clips[0])
    assert np.array_equal(read_video(tmp_path / "a.npy", first=1, max_frames=1), clips[0, 1:2])
    for i, frame in enumerate(clips[0]):
        write_contact_sheet(tmp_path / "frames" / f"{i:03}.png", frame[None, None], scale=1)
    folder = read_video(tmp_path / "frames", stride=2)
    assert np.array_equal(folder[:, 2:-2, 2:-2], clips[0, ::2])
    sheet = contact_sheet(clips, scale=1)
    assert sheet.shape == (2 * 68, 3 * 68, 3) and np.array_equal(sheet[2:66, 70:134], clips[0, 1])


def test_resize_keeps_proportions():
    video = np.zeros((1, 4, 8, 3), np.uint8)
    video[:, :, 2:6] = 200
    assert (resize(video, (2, 2)) == 200).all()
    assert resize(video, (4, 8)) is video


def test_unreadable_videos(tmp_path):
    with pytest.raises(VideoError, match="does not exist"):
        read_video(tmp_path / "no.mp4")
    (tmp_path / "bad.gif").write_bytes(b"GIF89a no")
    (tmp_path / "bad.npy").write_bytes(b"\x80\x04pickle")
    np.save(tmp_path / "float.npy", np.zeros((2, 4, 4, 3)))
    (tmp_path / "empty").mkdir()
    for name, rule in (("bad.gif", "cannot be read"), ("bad.npy", "cannot be read"), ("float.npy", "uint8"),
                       ("empty", "frames")):  # fmt: skip
        with pytest.raises(VideoError, match=rule) as error:
            read_video(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(VideoError, match="stride"):
        read_video(tmp_path / "float.npy", stride=0)
    with pytest.raises(VideoError, match="scale"):
        write_gif(tmp_path / "a.gif", np.zeros((1, 2, 2, 3), np.uint8), scale=0)


def test_car_racing_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(VideoError, match=r"needs gymnasium\[box2d\]"):
        drive(1)
    with pytest.raises(VideoError, match="at least 1"):
        drive(0)


# imageio tries its plugins in turn, and some of them leave the file open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_video_that_nothing_can_decode(tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"no video at all")
    with pytest.raises(VideoError, match="damaged, or needs a decoder") as error:
        read_video(tmp_path / "bad.mp4")
    assert "\n" not in str(error.value)
