"""The report: page, pictures, table."""

import base64
import dataclasses
import io
import math
import os
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastcar_sw.report.bound import bound_at, bound_of_run, mlp_share
from fastcar_sw.report.columns import COLUMNS
from fastcar_sw.report.cycle_figures import bus_figure, units_figure
from fastcar_sw.report.data import ReportData, RunData
from fastcar_sw.report.drawing import to_svg
from fastcar_sw.report.figures import replay_figure, speedup_figure
from fastcar_sw.report.formats import compact, count, decimal, percent, tenths, times
from fastcar_sw.report.frames import changed_tokens, liveliest_lane, png, token_grid
from fastcar_sw.report.page import write_report
from fastcar_sw.report.palette import DARK, LIGHT
from fastcar_sw.report.summary import verdict
from fastcar_sw.report.table import run_table

NBSP = "\N{NO-BREAK SPACE}"
LANES, LAYERS, FRAMES, TOKENS, SIDE = 2, 3, 4, 16, 16
POSITIONS = FRAMES * TOKENS - 1
HIDDEN, FFN, COLS = 32, 64, 8
#: Beats of an MLP: tiles of two scale beats and a beat a K-step.
MLP = 2 * (FFN // COLS) * (2 + HIDDEN) + (HIDDEN // COLS) * (2 + FFN)


def make_run(gate="tas", threshold=-3.0, *, seed=0, lanes=LANES, **changes):
    rng = np.random.default_rng(seed)
    eligible = np.arange(POSITIONS) >= 2 * TOKENS
    compute = rng.random((POSITIONS, LAYERS, lanes)) < 0.4
    compute[~eligible] = True
    if gate == "never":
        compute[:] = True
    counters = {
        "cycles": 1_234_567, "busy_load": 900_001, "busy_matrix": 1_000_003, "busy_vector": 300_007,
        "stall_beats": 50_021, "beats_weights": POSITIONS * LAYERS * MLP + 100_000, "beats_kv": 100_043,
        "beats_replay": 10_009, "beats_params": 5_003, "beats_control": 1_009, "beats_written": 20_011,
        "macs": 98_765_432, "dropped": 4_242,
    }  # fmt: skip
    fields = dict(
        gate=gate, definition="paper", threshold=threshold, lanes=lanes, frames=FRAMES, cycles=1_234_567,
        drs_cycles=777, replay_ratio_eligible=0.4321, replay_ratio_all=0.2109, bandwidth_utilisation=0.8765,
        mac_utilisation=0.5432, speedup=1.37, operations_compared=4_321, integers_compared=7_654_321,
        tokens_compared=126, mismatches=0, quality={"cross_entropy": 0.01234, "accuracy": 0.987, "psnr": 31.57},
        counters=counters, compute=compute, eligible=eligible,
        video=rng.integers(0, 256, (lanes, FRAMES, SIDE, SIDE, 3), np.uint8),
    )  # fmt: skip
    return RunData(**(fields | changes))


def make_report(*runs, lanes=LANES, **changes):
    if not runs:
        runs = (make_run("never", None, speedup=1.0, cycles=2_345_678, lanes=lanes), make_run(seed=1, lanes=lanes))
    fields = dict(
        model={"name": "toy", "layers": LAYERS, "hidden": HIDDEN, "heads": 2, "ffn": FFN, "vocab": 64},
        accelerator={"name": "small", "cores": 1, "rows": 1, "cols": COLS, "lanes": LANES, "weight_bits": 8},
        prompt_frames=2, tokens_per_frame=TOKENS, memory_latency=32, runs=runs,
        single_lane={"accelerator": "small-1", "cycles": 87_654, "bandwidth_utilisation": 0.9612,
                     "drs_cycles_per_layer": 1.25, "mismatches": 0},
        source=np.random.default_rng(9).integers(0, 256, (lanes, FRAMES, SIDE, SIDE, 3), np.uint8),
        command="fastcar demo --seed 7", versions={"amaranth": "0.5.99"}, seconds={"compile": 12.34},
    )  # fmt: skip
    return ReportData(**(fields | changes))


class Page(HTMLParser):
    """Elements of a page, and its text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.raw = [], "", text
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def read_page(folder, report):
    return Page(write_report(folder, report).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The usual report, its folder and its page; a page takes most of a second."""
    folder, report = tmp_path_factory.mktemp("report") / "new" / "folder", make_report()
    return report, folder, read_page(folder, report)


def decoded(uri):
    return base64.b64decode(uri.partition(";base64,")[2], validate=True)


def test_page_has_every_figure_and_number(shown):
    report, _, page = shown
    words = " ".join(page.text.split())
    assert "Every integer equal" in words
    for run in report.runs:
        for column in COLUMNS:
            assert column.text(report, run) in page.text, column.title
        for name, value in run.counters.items():
            assert name in words and count(value) in words
    for text in ("15,308,642 integers", "toy: 3 layers", "small: 1 × 1 × 8 PEs", "87,654", f"96.1{NBSP}%", "32 cycles",
                 "fastcar demo --seed 7", "0.5.99", "12.3 s", "tas -3", "paper", "16×16 pixels"):  # fmt: skip
        assert text in page.text, text
    # Speed-up, bus, units, one replay map: each in light and in dark.
    pictures = [i["src"] for i in page.all("img") if "svg" in i["src"]] + [s["srcset"] for s in page.all("source")]
    assert len(pictures) == 8
    assert all(decoded(p).lstrip().startswith(b"<?xml") and b"</svg>" in decoded(p) for p in pictures)
    # The strip: real, dense, replay and where it computed, by frames.
    assert sum("png" in i["src"] for i in page.all("img")) == 4 * FRAMES


def test_page_needs_nothing_else(shown):
    _, _, page = shown
    addresses = [e[1][a] for e in page.elements for a in ("src", "srcset", "href") if a in e[1]]
    addresses += re.findall(r'url\("([^"]*)"\)', page.raw)
    assert addresses and all(a.startswith("data:") for a in addresses)
    assert "script" not in {tag for tag, _ in page.elements} and "@import" not in page.raw
    # The pictures inside load nothing either; identifiers of name spaces are no addresses.
    for picture in [s["srcset"] for s in page.all("source")]:
        links = re.findall(rb'href="([^"]*)"', decoded(picture))
        assert all(link.startswith((b"#", b"data:")) for link in links)


def test_every_picture_has_words(shown):
    _, _, page = shown
    assert all(i["alt"] for i in page.all("img"))
    assert all(attrs.get("aria-label") for _, attrs in page.elements if attrs.get("role") == "img")


def test_gifs_beside_the_page(shown):
    _, folder, _ = shown
    assert {f.name for f in folder.iterdir()} == {"report.html", "dense.gif", "tas_-3.gif", "real_continuation.gif"}
    with Image.open(folder / "dense.gif") as gif:
        assert gif.n_frames == FRAMES and gif.height == 256 and gif.width == 256 * (2 * SIDE + 2) // SIDE


def test_animation_holds_all_runs_and_lanes(shown):
    _, _, page = shown
    gifs = re.findall(r'url\("(data:image/gif[^"]*)"\)', page.raw)
    with Image.open(io.BytesIO(decoded(gifs[0]))) as gif:
        assert len(gifs) == 1 and gif.n_frames == FRAMES and gif.size == (3 * SIDE, LANES * SIDE)
    labels = [attrs["aria-label"] for _, attrs in page.elements if "tile" in attrs.get("class", "").split()]
    assert sorted(set(labels)) == sorted(f"Animation: {t}, lane {n}" for t in ("dense", "tas -3", "real continuation")
                                         for n in range(LANES))  # fmt: skip
    assert len(labels) == 3 * (1 + LANES)


def test_many_lanes_are_sampled_and_the_page_says_so(tmp_path):
    page = read_page(tmp_path, make_report(lanes=12))
    assert "8 of 12 lanes" in page.text


def test_names_are_escaped(tmp_path):
    evil = '<script>alert("1")</script>$x^$ & ../../'
    runs = (make_run("never", None), make_run(evil))
    page = read_page(tmp_path, make_report(
        *runs, model={"name": evil}, accelerator={"name": evil}, command=evil, versions={evil: evil},
        seconds={evil: 1.0}, single_lane={"accelerator": evil},
    ))  # fmt: skip
    assert not page.all("script") and evil in page.text
    assert all(f.parent == tmp_path for f in tmp_path.rglob("*")) and len(list(tmp_path.iterdir())) == 4
    svg = decoded(page.all("source")[0]["srcset"]).decode()
    assert "<script" not in svg and "$x^$" in unescape(svg)


def test_equal_names_get_files_of_their_own(tmp_path, blank):
    write_report(tmp_path, make_report(make_run("never", None), make_run(), make_run(definition="reference-code")))
    assert {"tas_-3.gif", "tas_-3_2.gif"} <= {f.name for f in tmp_path.iterdir()}


def test_same_report_gives_same_bytes(shown, tmp_path):
    report, folder, _ = shown
    write_report(tmp_path, report)
    for file in folder.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(OSError):
            write_report(folder, make_report())
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def blank(monkeypatch):
    """Pages without content, for tests of files."""
    monkeypatch.setattr("fastcar_sw.report.page._render", lambda report, *_: report.command)


@pytest.mark.parametrize("allowed", range(4))
def test_nothing_is_left_when_writing_fails(tmp_path, monkeypatch, blank, allowed):
    real, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) > allowed:
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path / "folder", make_report())
    assert not list(tmp_path.iterdir())
    # The page moves last: when it is there, all of its files are.
    assert [c.name == "report.html" for c in calls] == [n == 3 for n in range(len(calls))]


def test_earlier_report_survives_a_failure(tmp_path, monkeypatch, blank):
    page = write_report(tmp_path, make_report(command="first"))

    def fail(*_):
        raise RuntimeError("half")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="half"):
        patch.setattr("fastcar_sw.report.page._render", fail)
        write_report(tmp_path, make_report(command="second"))
    assert page.read_text() == "first" and len(list(tmp_path.iterdir())) == 4
    write_report(tmp_path, make_report(command="third"))
    assert page.read_text() == "third" and len(list(tmp_path.iterdir())) == 4


def test_mismatches_fail_loudly(tmp_path):
    report = make_report(make_run("never", None), make_run(mismatches=1_234))
    page = read_page(tmp_path, report)
    assert "1,234 mismatches" in page.text and "tas -3 (1,234)" in page.text
    assert "Every integer equal" not in page.raw
    assert {"class": "verdict bad", "role": "status"} in page.all("div")
    assert page.raw.count('<tr class="wrong">') == 1


@pytest.mark.parametrize(
    "report, state, headline",
    [
        (make_report(), "good", "Every integer equal"),
        (make_report(make_run(mismatches=1)), "bad", "1 mismatch"),
        (make_report(single_lane={"mismatches": 3}), "bad", "3 mismatches"),
        (make_report(make_run("never", None, integers_compared=0)), "unsure", "Not every run was compared"),
        (make_report(make_run(integers_compared=0, mismatches=2)), "bad", "2 mismatches"),
    ],
)
def test_verdict(report, state, headline):
    assert (verdict(report).state, verdict(report).headline) == (state, headline)


@pytest.mark.parametrize("eligible", [np.zeros(POSITIONS, bool), np.zeros(0, bool)])
def test_nothing_eligible(tmp_path, eligible):
    run = make_run(eligible=eligible, compute=np.ones((POSITIONS, LAYERS, LANES), bool), replay_ratio_eligible=0.0)
    page = read_page(tmp_path, make_report(make_run("never", None, eligible=eligible), run))
    assert f"0.0{NBSP}%" in page.text


@pytest.mark.parametrize(
    "quality, cells",
    [
        ({}, ["–", "–", "–"]),
        ({"psnr": None, "accuracy": None, "cross_entropy": None}, ["–", "–", "–"]),
        ({"psnr": math.inf, "cross_entropy": math.nan, "accuracy": 1.0}, ["–", f"100.0{NBSP}%", "∞"]),
    ],
)
def test_quality_may_be_missing_or_infinite(tmp_path, quality, cells):
    report = make_report(make_run("never", None), make_run(quality=quality))
    page = read_page(tmp_path, report)
    assert "</td>".join(f"<td>{cell}" for cell in cells) in page.raw
    short = [column.short_text(report, report.runs[1]) for column in COLUMNS if column.group == "Quality"]
    assert short == [cell.split(NBSP)[0] for cell in cells]


def test_the_least_that_a_report_may_have(tmp_path):
    run = make_run("never", None, counters={}, drs_cycles=0, lanes=1)
    report = ReportData(
        model={}, accelerator={}, prompt_frames=0, tokens_per_frame=TOKENS - 1, memory_latency=1, runs=(run,)
    )
    page = read_page(tmp_path, report)
    assert "A single lane" not in page.text and "Where it replayed" not in page.text
    # Without a grid of tokens no token can be marked.
    assert token_grid(report) is None and sum("png" in i["src"] for i in page.all("img")) == FRAMES


@pytest.mark.parametrize(
    "report, message",
    [
        (make_report(runs=()), "at least one run"),
        (make_report(source=np.zeros((1, 2, 3, 4, 3), np.uint8)), "source"),
        (make_report(make_run(video=np.zeros((LANES, FRAMES, SIDE, SIDE, 3)))), "float64"),
        (make_report(make_run(compute=np.ones((POSITIONS, LAYERS, 7), bool))), "lanes=2"),
    ],
)
def test_wrong_shapes_are_named(tmp_path, report, message):
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / "folder", report)
    assert not list(tmp_path.iterdir())


def test_table_has_the_columns_and_fits(capsys):
    report = make_report(make_run("never", None), make_run("[bold]tas", -12.75, mismatches=3))
    Console(width=120, color_system=None).print(run_table(report))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 2 and max(map(len, lines)) <= 120
    for run, line in zip(report.runs, lines[3:], strict=True):
        assert line.startswith(run.title)
        assert line.removeprefix(run.title).split() == [column.short_text(report, run) for column in COLUMNS]


def texts(figure):
    return " ".join(re.findall(r">([^<>]+)</text>", unescape(to_svg(figure).decode())))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_pictures_name_what_they_show(theme):
    report = make_report()
    assert "frame 0" in texts(replay_figure(report, report.runs[1], theme))
    assert "prompt" in texts(replay_figure(report, report.runs[1], theme, lane=1, legend=False))
    assert "keys and values" in texts(bus_figure(report, theme)) and "idle" in texts(bus_figure(report, theme))
    assert "matrix" in texts(units_figure(report, theme)) and "Waiting" in texts(units_figure(report, theme))
    assert "1.37×" in texts(speedup_figure(report, theme)) and "bound" in texts(speedup_figure(report, theme))


def test_replay_picture_writes_the_ratio_of_each_layer():
    run = make_run()
    words = texts(replay_figure(make_report(), run))
    for layer in range(LAYERS):
        assert percent(1 - run.compute[run.eligible, layer].mean()) in words


def test_bus_picture_never_hides_beats():
    report = make_report()
    assert "read" not in texts(bus_figure(report))
    # Reads and writes overlap: each of them gets its bar.
    busy = dataclasses.replace(report.runs[1], cycles=380_000)
    words = texts(bus_figure(make_report(report.runs[0], busy)))
    assert "tas -3, read" in words and "dense, read" in words and "more than cycles" not in words
    # More beats than cycles cannot be, so the picture says so.
    words = texts(bus_figure(make_report(report.runs[0], dataclasses.replace(busy, cycles=1_000))))
    assert "beats more than cycles" in words


def test_bound_of_one_lane_is_that_of_the_method():
    dense = make_run("never", None, lanes=1)
    replay = make_run(lanes=1, seed=3)
    report = make_report(dense, replay, lanes=1)
    beats = sum(dense.counters[f"beats_{name}"] for name in ("weights", "kv", "replay", "params", "control"))
    share = POSITIONS * LAYERS * MLP / beats
    assert mlp_share(report) == pytest.approx(share)
    ratio = 1 - replay.compute.mean()
    assert bound_of_run(report, replay) == pytest.approx(1 / (1 - share * ratio))
    assert bound_of_run(report, replay) == pytest.approx(float(bound_at(share, np.array(ratio))))
    assert bound_of_run(report, dense) == 1


def test_bound_of_lanes_counts_passes():
    dense = make_run("never", None)
    # One of two lanes replays: half of the passes on one row, and none on two rows.
    half = dense.compute.copy()
    half[:, :, 0] = False
    replay = make_run(compute=half)
    report = make_report(dense, replay)
    share = mlp_share(report)
    saved = 1 - 1 / bound_of_run(report, replay)
    steps = 2 * (FFN // COLS) * HIDDEN + (HIDDEN // COLS) * FFN
    assert saved == pytest.approx(share * steps / (MLP + steps))
    wide = make_report(dense, replay, accelerator=report.accelerator | {"rows": 2})
    assert bound_of_run(wide, replay) == 1
    # No lane computes: not even the weights are fetched.
    none = make_run(compute=np.zeros_like(half))
    assert bound_of_run(wide, none) == pytest.approx(1 / (1 - mlp_share(wide)))


def test_no_bound_where_the_shapes_do_not_say():
    assert mlp_share(make_report(model={})) is None
    dense = make_run("never", None, counters={"beats_weights": 5})
    assert mlp_share(make_report(dense)) is None and bound_of_run(make_report(dense), dense) is None


def test_frames():
    report = make_report()
    assert token_grid(report) == (4, 4)
    video = report.runs[0].video[0].copy()
    video[2, 5, 9, 1] ^= 1
    changed = changed_tokens(video, report.runs[0].video[0], (4, 4))
    assert np.argwhere(changed).tolist() == [[2, 1, 2]]
    still = np.repeat(report.runs[0].video[:, :1], FRAMES, 1)
    still[1, 2] ^= 1
    assert liveliest_lane(make_run(video=still)) == 1
    with Image.open(io.BytesIO(png(np.zeros((SIDE, SIDE, 3), np.uint8), scale=3, marked=changed[2]))) as image:
        marked = np.asarray(image).any(2)
    rows, columns = np.nonzero(marked)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (12, 23, 24, 35) and not marked[17, 29]


@pytest.mark.parametrize(
    "written, text",
    [
        (count(1234567), "1,234,567"), (count(None), "–"), (compact(99_999), "99,999"), (compact(123_456), "123k"),
        (compact(999_999), "1.00M"), (compact(12_345_678), "12.3M"), (compact(7e14), "700T"),
        (percent(0.4567), f"45.7{NBSP}%"), (percent(0.4567, 0), f"46{NBSP}%"), (times(1.234), "1.23×"),
        (decimal(2.4e-5), "2.4e-05"), (decimal(math.nan), "–"), (tenths(-math.inf), "-∞"), (tenths(31.57), "31.6"),
    ],
)  # fmt: skip
def test_numbers(written, text):
    assert written == text


@pytest.mark.parametrize(
    "gate, threshold, title", [("never", None, "dense"), ("always", None, "always"), ("tas", -2.5, "tas -2.5")]
)
def test_titles(gate, threshold, title):
    assert make_run(gate, threshold).title == title
