"""Patch tokenizer: exact dictionaries, k-means, error paths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_sw.video.metrics import psnr
from fastcar_sw.video.tokenizer import PatchTokenizer, TokenizerError, fit_kmeans

RNG = np.random.default_rng(0)
PATCHES = RNG.integers(0, 256, (6, 2, 2, 3), dtype=np.uint8)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), seed=st.integers(0, 1000))
def test_round_trip(rows, columns, seed):
    tokenizer = PatchTokenizer(PATCHES, (rows, columns))
    tokens = np.random.default_rng(seed).integers(0, 6, (2, 3, rows * columns))
    frames = tokenizer.decode(tokens)
    assert frames.shape == (2, 3, rows * 2, columns * 2, 3)
    assert np.array_equal(tokenizer.encode(frames, exact=True), tokens)
    assert np.array_equal(tokenizer.decode(tokenizer.encode(frames)), frames)


def test_raster_order():
    frame = PatchTokenizer(PATCHES, (2, 3)).decode(np.arange(6)[None])[0]
    for place in range(6):
        y, x = place // 3 * 2, place % 3 * 2
        assert np.array_equal(frame[y : y + 2, x : x + 2], PATCHES[place])


def test_padding_repeats_the_first_entry_and_is_never_produced():
    tokenizer = PatchTokenizer.from_patches(PATCHES, (1, 2), vocab=16)
    assert tokenizer.vocab == 16 and tokenizer.patch == 2 and tokenizer.frame_shape == (2, 4)
    frame = tokenizer.decode(np.array([[15, 3]]))
    assert tokenizer.encode(frame).tolist() == [[0, 3]]


def test_unknown_patches_take_the_nearest_entry_unless_exact():
    tokenizer = PatchTokenizer(PATCHES, (1, 1))
    near = PATCHES[4:5].copy()
    near[0, 0, 0, 0] ^= 1
    assert tokenizer.encode(near).tolist() == [[4]]
    with pytest.raises(TokenizerError, match="1 of 1 patches"):
        tokenizer.encode(near, exact=True)


def test_codebook_is_read_only_and_a_copy():
    mine = PATCHES.copy()
    tokenizer = PatchTokenizer(mine, (1, 1))
    mine[:] = 0
    assert np.array_equal(tokenizer.codebook, PATCHES)
    with pytest.raises(ValueError):
        tokenizer.codebook[0] = 0


def test_kmeans_is_exact_where_it_can_be():
    tokenizer = PatchTokenizer(PATCHES, (4, 4))
    frames = tokenizer.decode(RNG.integers(0, 6, (5, 16)))
    found = fit_kmeans(frames, 2, 8)
    assert np.array_equal(found.decode(found.encode(frames, exact=True)), frames)


def test_kmeans_finds_clusters_and_is_seeded():
    tokenizer = PatchTokenizer(PATCHES, (8, 8))
    clean = tokenizer.decode(RNG.integers(0, 6, (8, 64))).astype(int)
    frames = np.clip(clean + RNG.integers(-3, 4, clean.shape), 0, 255).astype(np.uint8)
    steps = []
    found = fit_kmeans(frames, 2, 6, seed=1, progress=lambda done, total: steps.append((done, total)))
    assert psnr(found.decode(found.encode(frames)), frames) > 38
    assert steps[-1] == (20, 20)
    assert np.array_equal(found.codebook, fit_kmeans(frames, 2, 6, seed=1).codebook)
    rough = fit_kmeans(frames, 2, 3, seed=1)
    assert psnr(rough.decode(rough.encode(frames)), frames) < 30


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: PatchTokenizer(PATCHES[:, :1], (1, 1)), "codebook must have the shape"),
        (lambda: PatchTokenizer(PATCHES.astype(int), (1, 1)), "uint8"),
        (lambda: PatchTokenizer(PATCHES, (0, 1)), "grid"),
        (lambda: PatchTokenizer.from_patches(PATCHES, (1, 1), vocab=5), "at most vocab=5"),
        (lambda: PatchTokenizer(PATCHES, (1, 1)).encode(np.zeros((1, 3, 2, 3), np.uint8)), "frames must be"),
        (lambda: PatchTokenizer(PATCHES, (1, 1)).encode(np.zeros((1, 2, 2, 3))), "frames must be uint8"),
        (lambda: PatchTokenizer(PATCHES, (1, 1)).decode(np.array([[6]])), "0..5"),
        (lambda: PatchTokenizer(PATCHES, (1, 1)).decode(np.array([[-1]])), "0..5"),
        (lambda: PatchTokenizer(PATCHES, (1, 1)).decode(np.array([[0, 0]])), "tokens must have the shape"),
        (lambda: fit_kmeans(np.zeros((1, 5, 4, 3), np.uint8), 2, 4), "multiples of patch=2"),
        (lambda: fit_kmeans(np.zeros((4, 4, 3), np.uint8), 2, 4), "frames must be"),
        (lambda: fit_kmeans(np.zeros((1, 4, 4, 3), np.uint8), 2, 1), "vocab"),
    ],
)
def test_errors(call, rule):
    with pytest.raises(TokenizerError, match=rule):
        call()
