"""Videos in files: reading any of them, writing GIFs and contact sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

__all__ = ["VideoError", "contact_sheet", "read_video", "resize", "write_contact_sheet", "write_gif"]

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: Pixels between the frames of a contact sheet, before enlargement.
_MARGIN = 2


class VideoError(ValueError):
    """A video cannot be read or written; the message is one line that says which and why."""


def read_video(
    path: Path | str,
    *,
    size: tuple[int, int] | None = None,
    first: int = 0,
    stride: int = 1,
    max_frames: int | None = None,
) -> np.ndarray:
    """Read a video.

    Parameters
    ----------
    path
        A folder of pictures in the order of their names, an ``.npy`` array (frames, H, W, 3) of uint8, a
        picture, a GIF, or any file that imageio's plugins can decode (MP4 needs ``imageio[pyav]`` or
        ``imageio[ffmpeg]``).
    size
        Height and width in pixels; those of the file when missing.
    first, stride, max_frames
        Which frames: every ``stride``-th from ``first`` on, at most ``max_frames`` of them.

    Returns
    -------
    numpy.ndarray
        uint8 (frames, H, W, 3).

    Raises
    ------
    VideoError
        When nothing can be read there.
    """
    path = Path(path)
    if first < 0 or stride < 1 or (max_frames is not None and max_frames < 1):
        raise VideoError("first must be at least 0, stride and max_frames at least 1, "
                         f"not {first}, {stride} and {max_frames}")  # fmt: skip
    if not path.exists():
        raise VideoError(f"video {path} does not exist")
    keep = slice(first, None if max_frames is None else first + stride * max_frames, stride)
    try:
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.suffix.lower() in _PICTURES)
            frames = [_picture(file, size) for file in files[keep]]
        elif path.suffix.lower() == ".npy":
            frames = list(_array(path)[keep])
        elif path.suffix.lower() in _PICTURES:
            frames = [_picture(path, size)][keep]
        else:
            frames = _decode(path, keep, size)
    except (OSError, UnidentifiedImageError, ValueError) as error:
        if isinstance(error, VideoError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VideoError(f"video {path} cannot be read: {reason}") from None
    if not frames:
        raise VideoError(f"video {path} must have frames from number {first} on, but has none")
    if len({frame.shape for frame in frames}) > 1:
        raise VideoError(f"video {path} must have frames of one size; give a size to resize them")
    video = np.stack(frames)
    return resize(video, size) if size is not None else video


def _picture(path: Path, size: tuple[int, int] | None) -> np.ndarray:
    with Image.open(path) as image:
        frame = np.asarray(image.convert("RGB"))
    # Resized at once, so that pictures of different sizes may be mixed.
    return frame if size is None else resize(frame[None], size)[0]


def _array(path: Path) -> np.ndarray:
    array = np.load(path, allow_pickle=False)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3:
        raise VideoError(f"array {path} must be uint8 (frames, H, W, 3), not {array.dtype} {array.shape}")
    return array


def _decode(path: Path, keep: slice, size: tuple[int, int] | None) -> list[np.ndarray]:
    if path.suffix.lower() == ".gif":
        with Image.open(path) as image:
            return [_gif_frame(image, i, size) for i in range(getattr(image, "n_frames", 1))[keep]]
    import imageio.v3 as iio  # here, because its plugins are optional and slow to import

    frames = []
    try:
        for i, frame in enumerate(iio.imiter(path)):
            if keep.stop is not None and i >= keep.stop:
                break
            if i >= keep.start and (i - keep.start) % keep.step == 0:
                rgb = np.asarray(Image.fromarray(frame).convert("RGB"))
                frames.append(rgb if size is None else resize(rgb[None], size)[0])
    except (ImportError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VideoError(
            f"video {path} is damaged, or needs a decoder (imageio[pyav] or imageio[ffmpeg]): {reason}"
        ) from None
    return frames


def _gif_frame(image: Image.Image, index: int, size: tuple[int, int] | None) -> np.ndarray:
    image.seek(index)
    frame = np.asarray(image.convert("RGB"))
    return frame if size is None else resize(frame[None], size)[0]


def resize(video: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a video, uint8 (frames, H, W, 3), with another height and width.

    The middle is cut out where the proportions differ, and averaged over areas where pixels get fewer.
    """
    height, width = size
    if height < 1 or width < 1:
        raise VideoError(f"size must be (height, width), each at least 1, not {size}")
    old_height, old_width = video.shape[1:3]
    if (old_height, old_width) == (height, width):
        return video
    scale = min(old_height / height, old_width / width)
    top, left = (old_height - scale * height) / 2, (old_width - scale * width) / 2
    box = (left, top, left + scale * width, top + scale * height)
    how = Image.Resampling.BOX if scale > 1 else Image.Resampling.BICUBIC
    return np.stack([np.asarray(Image.fromarray(f).resize((width, height), how, box=box)) for f in video])


def _enlarged(frame: np.ndarray, scale: int) -> np.ndarray:
    """Repeat every pixel: blocks stay crisp."""
    return frame.repeat(scale, 0).repeat(scale, 1)


def write_gif(path: Path | str, video: np.ndarray, *, scale: int = 4, fps: float = 5.0) -> None:
    """Write a GIF that loops.

    Parameters
    ----------
    path
        File; its folder is made.
    video
        uint8 (frames, H, W, 3).
    scale
        Size of a pixel in pixels of the file.
    fps
        Frames a second, at most 50.

    Raises
    ------
    VideoError
        When the video has the wrong shape or the file cannot be written.
    """
    frames = [Image.fromarray(_enlarged(frame, scale)) for frame in _checked(video, scale)]
    if not 0 < fps <= 50:
        raise VideoError(f"fps must be in 0..50, not {fps}")
    # One palette for the whole video: with one a frame, static areas would flicker.
    strip = Image.fromarray(np.concatenate(list(video), 0)).quantize(256, dither=Image.Dither.NONE)
    frames = [f.quantize(palette=strip, dither=Image.Dither.NONE) for f in frames]
    options = {"save_all": True, "append_images": frames[1:], "duration": round(1000 / fps), "loop": 0}
    _save(frames[0], Path(path), options)


def contact_sheet(videos: np.ndarray, *, scale: int = 3) -> np.ndarray:
    """Return one picture with a video a row and a frame a column.

    Parameters
    ----------
    videos
        uint8 (videos, frames, H, W, 3).
    scale
        Size of a pixel in pixels of the picture.

    Returns
    -------
    numpy.ndarray
        uint8 (height, width, 3), with white margins.
    """
    margin = ((0, 0), (0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0))
    if np.ndim(videos) != 5:
        raise VideoError(f"videos must have the shape (videos, frames, H, W, 3), not {np.shape(videos)}")
    padded = np.pad(np.stack([_checked(v, scale) for v in videos]), margin, constant_values=255)
    count, frames, height, width, _ = padded.shape
    return _enlarged(padded.swapaxes(1, 2).reshape(count * height, frames * width, 3), scale)


def write_contact_sheet(path: Path | str, videos: np.ndarray, *, scale: int = 3) -> None:
    """Write `contact_sheet` as a PNG; raise `VideoError` when that fails."""
    _save(Image.fromarray(contact_sheet(videos, scale=scale)), Path(path), {"format": "PNG"})


def _checked(video: np.ndarray, scale: int) -> np.ndarray:
    video = np.asarray(video)
    if video.dtype != np.uint8 or video.ndim != 4 or video.shape[-1] != 3 or len(video) < 1:
        raise VideoError(f"video must be uint8 (frames, H, W, 3), not {video.dtype} {video.shape}")
    if type(scale) is not int or scale < 1:
        raise VideoError(f"scale must be an integer of at least 1, not {scale!r}")
    return video


def _save(image: Image.Image, path: Path, options: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, **options)
    except (OSError, ValueError) as error:
        raise VideoError(f"{path} cannot be written: {error}") from None
