"""The command line, in this process: what it writes, what it says, and how it ends."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np
import pytest

from fastcar_hw.export import to_verilog
from fastcar_hw.presets import accelerator_preset, model_preset
from fastcar_sw.cli import generate as generate_command
from fastcar_sw.cli import running
from fastcar_sw.cli.app import run_command as run
from fastcar_sw.image import Image, compile_image
from fastcar_sw.model import VideoModel, save_model
from fastcar_sw.quantize import quantize, random_model

TEST = model_preset("test")
#: One step of one layer: short enough for Amaranth's simulator.
SHORT = TEST.replace(name="short", vocab=8, hidden=8, layers=1, heads=1, kv_heads=1, ffn=8, tokens_per_frame=2)
FILES = {
    "fastcar.v", "registers.md", "registers.json", "fastcar_registers.h", "accelerator.toml", "memory_map.md",
    "memory_map.json", "model.fcar", "program.txt",
}  # fmt: skip

cached_verilog = cache(to_verilog)


@cache
def quantized(shapes, seed=1):
    return quantize(shapes, random_model(shapes, seed))


@cache
def image(shapes=TEST):
    return compile_image(quantized(shapes), accelerator_preset("test"))[0]


class Ending:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def fastcar(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        return Ending(code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(fastcar):
    """Run a command that must end with one line and exit code 2, or another one."""

    def call(*arguments, match, code=2):
        ending = fastcar(*arguments)
        lines = [line for line in ending.err.splitlines() if not line.startswith("[")]
        assert (ending.code, len(lines)) == (code, 1), ending.err
        assert lines[0].startswith("fastcar: error: ")
        assert re.search(match, lines[0]), lines[0]
        assert ending.out == ""
        return lines[0]

    return call


@pytest.fixture
def files(tmp_path):
    """Return a folder with images, a model, and the accelerator `test` as TOML."""
    image().save(tmp_path / "a.fcar")
    image(SHORT).save(tmp_path / "short.fcar")
    save_model(tmp_path / "m.safetensors", VideoModel(config=TEST, state=random_model(TEST, 1)))
    (tmp_path / "a.toml").write_text(f"[accelerator]\n{accelerator_preset('test').to_toml()}", encoding="utf-8")
    return tmp_path


@pytest.fixture
def quick_verilog(monkeypatch):
    monkeypatch.setattr(generate_command, "to_verilog", cached_verilog)


def tree(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Generate.


def test_generate_writes_everything_twice_the_same(fastcar, files, quick_verilog):
    arguments = ("generate", "--config", "test", "--target", "verilog", "--model", files / "m.safetensors")
    first = fastcar(*arguments, "--out", files / "new" / "a", "--json", "-")
    assert first.code == 0
    # What it wrote is a configuration, too.
    again = ("generate", "--config", files / "new" / "a" / "accelerator.toml", "--model", files / "m.safetensors")
    assert fastcar(*again, "--out", files / "b", "--json", files / "b.json").code == 0
    assert tree(files / "new") == {"a", *(f"a/{name}" for name in FILES)}
    for name in FILES:
        content = (files / "new" / "a" / name).read_bytes()
        assert content == (files / "b" / name).read_bytes(), name
        assert str(files).encode() not in content
    second = json.loads((files / "b.json").read_text())
    assert {**first.json, "out": 0} == {**second, "out": 0}
    assert {entry["name"]: entry["bytes"] for entry in second["files"]} == {
        name: (files / "b" / name).stat().st_size for name in FILES
    }
    found = Image.load(files / "b" / "model.fcar")
    assert (files / "b" / "program.txt").read_text().splitlines() == found.listing()
    memory_map = json.loads((files / "b" / "memory_map.json").read_text())
    assert [(row["name"], (row["offset"], row["bytes"])) for row in memory_map["image"]["sections"]] == list(
        found.sections.items()
    )
    assert memory_map["heap"]["bytes"] == found.heap_bytes
    layer = memory_map["layer"]
    assert layer["count"] * layer["bytes"] == found.sections["layers"][1] == layer["count"] * sum(
        row["bytes"] for row in layer["sections"]
    )
    registers = json.loads((files / "b" / "registers.json").read_text())
    assert {register["name"] for register in registers["registers"]} >= {"id", "control"}


def test_generate_without_a_model_has_no_image(fastcar, tmp_path, quick_verilog):
    ending = fastcar("generate", "--config", "test", "--out", tmp_path / "a", "--json", "-")
    assert ending.code == 0
    assert tree(tmp_path / "a") == FILES - {"memory_map.md", "memory_map.json", "model.fcar", "program.txt"}
    assert ending.json["model"] is None
    assert ending.json["hardware"] == f"{accelerator_preset('test').hash:016x}"


def test_generate_adds_trace_ports(fastcar, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(generate_command, "to_verilog", lambda config: seen.append(config) or "module\n")
    for arguments in ((), ("--trace",)):
        assert fastcar("generate", "--config", "test", *arguments, "--out", tmp_path / "a").code == 0
    assert [config.trace for config in seen] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--target", "vhdl"), "--target must be one of verilog, not 'vhdl'"),
        (("--config", "nix"), "unknown accelerator preset 'nix'; presets are test, "),
        (("--config", "nix.toml"), "configuration file nix.toml cannot be read: No such file"),
        (("--model", "nix"), "shipped model must be one of carracing, traffic, not 'nix'"),
        (("--model", "traffic"), "model hidden must be at most 16 on accelerator 'test', not 128"),
        (("--model", "nix.safetensors"), "model nix.safetensors does not exist"),
        (("--calibration", "x.npy"), "--calibration needs a --model"),
        (("--seed", "-1"), "Invalid value for '--seed'"),
        (("--foo",), "No such option: --foo"),
    ],
)
def test_generate_refuses(refused, tmp_path, monkeypatch, arguments, match):
    monkeypatch.chdir(tmp_path)
    if "--config" not in arguments:
        arguments = ("--config", "test", *arguments)
    refused("generate", *arguments, "--out", tmp_path / "a" / "b", match=match)
    assert not tree(tmp_path)


#: A value that breaks the rule of each field, alone.
IMPOSSIBLE = [
    ("cores", 0), ("cores", 2), ("rows", 33), ("rows", 2), ("cols", 12), ("cols", 256), ("lanes", 33),
    ("weight_bits", 4), ("vector_width", 3), ("vector_width", 8), ("weight_fifo_depth", 100),
    ("weight_fifo_depth", 16), ("address_width", 65), ("burst_beats", 24), ("burst_beats", 512), ("outstanding", 0),
    ("load_queue", 1), ("program_words", 100), ("program_words", 32), ("max_hidden", 12), ("max_hidden", 1 << 20),
    ("max_ffn", 1 << 16), ("max_layers", 0), ("max_heads", 125), ("max_head_dim", 512), ("max_seq", 1 << 16),
    ("topk_max", 65), ("name", ""), ("cores", "two"), ("cores", True), ("trace", 1), ("cores", 1.0), ("colour", 1),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE)
def test_impossible_hardware_is_refused(refused, tmp_path, field, value):
    fields = {**accelerator_preset("test").to_dict(), field: value}
    text = "\n".join(f"{name} = {json.dumps(entry)}" for name, entry in fields.items())
    (tmp_path / "a.toml").write_text(f"[accelerator]\n{text}\n", encoding="utf-8")
    refused("generate", "--config", tmp_path / "a.toml", "--out", tmp_path / "out", match=field)
    refused("info", tmp_path / "a.toml", match=field)
    assert tree(tmp_path) == {"a.toml"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"[model", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"", "neither a .model. nor an .accelerator. table"),
        (b"[board]\n", "unknown tables: board"),
        (b"accelerator = 3\n", "AcceleratorConfig must be a table of fields, not 3"),
        (b"accelerator = 'x'\n", "AcceleratorConfig must be a table of fields"),
        (b"[accelerator]\n", "AcceleratorConfig lacks the field 'name'"),
        (b"[accelerator]\nname = 'a'\nmax_seq = " + b"9" * 5000, "not valid TOML"),
        (b"[accelerator]\nname = " + b"[" * 100_000, "not valid TOML"),
    ],
)
def test_toml_that_is_none_is_refused(refused, tmp_path, text, match):
    (tmp_path / "a.toml").write_bytes(text)
    refused("generate", "--config", tmp_path / "a.toml", "--out", tmp_path / "out", match=match)
    assert tree(tmp_path) == {"a.toml"}


def test_a_model_must_fit_configuration_and_hardware(refused, files):
    accelerator = accelerator_preset("test").to_toml()
    toml = files / "b.toml"
    model = ("--model", files / "m.safetensors", "--out", files / "out")
    toml.write_text(f"[model]\n{TEST.replace(ffn=16).to_toml()}[accelerator]\n{accelerator}", encoding="utf-8")
    refused("generate", "--config", toml, *model, match="model must have the ffn=16 of the .model. table")
    toml.write_text(f"[model]\n{TEST.to_toml()}", encoding="utf-8")
    refused("generate", "--config", toml, *model, match="must have an .accelerator. table")
    for change, match in (({"max_layers": 1}, "model layers must be at most 1"),
                          ({"program_words": 64}, "but program_words is 64")):  # fmt: skip
        text = accelerator_preset("test").replace(**change).to_toml()
        toml.write_text(f"[accelerator]\n{text}", encoding="utf-8")
        refused("generate", "--config", toml, *model, match=match)
    assert not (files / "out").exists()


def test_any_name_survives_toml(tmp_path, fastcar):
    config = accelerator_preset("test").replace(name='a "b" \\ \n\t\x7f \U0001f697 [red]')
    (tmp_path / "a.toml").write_text(f"[accelerator]\n{config.to_toml()}", encoding="utf-8")
    ending = fastcar("info", tmp_path / "a.toml", "--json", "-")
    assert ending.json["accelerator"]["name"] == config.name


def test_a_missing_yosys_is_named(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("YOSYS", "no-such-yosys")
    refused("generate", "--config", "test", "--out", tmp_path / "a", match="no-such-yosys is not installed")
    assert not tree(tmp_path)


# All or nothing.


def test_nothing_is_left_of_an_interrupted_command(refused, files, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_command, "to_verilog", interrupted)
    before = tree(files)
    arguments = ("--config", "test", "--out", files / "x" / "y", "--json", files / "x.json")
    refused("generate", *arguments, match="interrupted", code=130)
    assert tree(files) == before


def test_an_error_leaves_the_files_of_before(refused, files, monkeypatch):
    out, result = files / "out", files / "out.json"
    out.mkdir()
    (out / "fastcar.v").write_text("old")
    result.write_text("old")
    monkeypatch.setattr(generate_command, "to_verilog", lambda _: "new")
    # The last thing that could be in the way.
    (out / "registers.md").mkdir()
    before = tree(files)
    refused("generate", "--config", "test", "--out", out, "--json", result, match="registers.md cannot be written")
    assert tree(files) == before
    assert (out / "fastcar.v").read_text() == result.read_text() == "old"


def test_existing_folders_keep_what_else_they_hold(fastcar, files, monkeypatch):
    monkeypatch.setattr(generate_command, "to_verilog", lambda _: "new")
    out = files / "out"
    out.mkdir()
    (out / "mine").write_text("old")
    (out / "fastcar.v").write_text("old")
    assert fastcar("generate", "--config", "test", "--out", out).code == 0
    assert (out / "fastcar.v").read_text() == "new"
    assert (out / "mine").read_text() == "old"
    assert not [name for name in tree(files) if ".fastcar-" in name]


def test_the_result_may_be_in_the_folder_that_is_made(fastcar, refused, files):
    out = files / "x" / "y"
    arguments = ("simulate", files / "a.fcar", "--engine", "twin", "--out", out, "--json")
    for _ in range(2):
        assert fastcar(*arguments, out / "r.json").code == 0
        assert tree(out) == {"tokens.npy", "counters.json", "r.json"}
    assert json.loads((out / "r.json").read_text())["engine"] == "twin"
    (out / "folder").mkdir()
    refused(*arguments, out / "folder", match="folder cannot be written: it is a folder")


def test_places_that_cannot_be_written_are_refused(refused, files, monkeypatch):
    monkeypatch.setattr(generate_command, "to_verilog", lambda _: pytest.fail("the work was done for nothing"))
    before = tree(files)
    below = files / "a.toml" / "x"
    config = ("generate", "--config", "test")
    refused(*config, "--out", below, match="folder .* cannot be written: Not a directory")
    refused(*config, "--out", files / "a.toml", match="folder .* cannot be written: ")
    refused(*config, "--out", files / "n", "--json", below, match="file .* cannot be written: Not a directory")
    refused(*config, "--out", files / "n", "--json", files / "none" / "x", match="cannot be written: No such file")
    refused(*config, "--out", files / "n", "--json", files, match="cannot be written: it is a folder")
    refused("info", "test", "--json", below, match="cannot be written")
    refused("simulate", files / "a.fcar", "--engine", "twin", "--out", below, match="cannot be written")
    refused("compare", files / "a.fcar", "--out", below, match="cannot be written")
    refused("simulate", files / "short.fcar", "--engine", "pysim", "--vcd", below, "--out", files / "n",
            match="cannot be written")  # fmt: skip
    assert tree(files) == before


def test_a_device_is_written_and_not_replaced(fastcar):
    assert fastcar("info", "test", "--json", "/dev/null").code == 0
    with open("/dev/null", "rb") as null:
        assert null.read() == b""


# Info.


def test_info_of_an_image(fastcar, files):
    ending = fastcar("info", files / "a.fcar", "--listing")
    assert ending.code == 0
    for text in ("config_hash", "embedding", "tokens_per_frame", "acc_width", image().listing()[-1]):
        assert text in ending.out
    found = fastcar("info", files / "a.fcar", "--json", "-").json
    assert found["image"]["model_hash"] == f"{image().model_hash:016x}"
    assert found["image"]["instructions"] == image().program_words
    assert {row["name"]: (row["offset"], row["bytes"]) for row in found["sections"]} == image().sections
    assert "listing" not in found
    (files / "b").write_bytes((files / "a.fcar").read_bytes())
    assert fastcar("info", files / "b", "--json", "-").json == found


def test_info_of_models_and_presets(fastcar, files):
    found = fastcar("info", files / "m.safetensors", "--json", "-").json
    assert found["model"]["hidden"] == 16
    assert found["tensors"]["lm_head.weight"] == [32, 16]
    shipped = fastcar("info", "traffic", "--json", "-").json
    assert shipped["tokenizer"]["grid"] == [8, 8]
    assert shipped["training"]["data"] == "procedural traffic"
    assert shipped["model"]["parameters"] == 877_696
    both = fastcar("info", "test", "--json", "-").json
    assert both["model"]["name"] == both["accelerator"]["name"] == "test"
    assert both["derived"]["elements"] == 8
    large = fastcar("info", "vila-u-7b", "--json", "-").json
    assert 6e9 < large["model"]["parameters"] < 8e9
    for thing in ("traffic", "test", files / "m.safetensors", files / "a.toml"):
        ending = fastcar("info", thing)
        assert (ending.code, ending.err) == (0, "")


def test_info_refuses_what_it_does_not_know(refused, files):
    for name, content, match in (
        ("x.fcar", b"", "x.fcar is not a FastCar image"),
        ("x.fcar", (files / "a.fcar").read_bytes()[:-1], "x.fcar is truncated"),
        ("x.fcar", (files / "m.safetensors").read_bytes(), "x.fcar is not a FastCar image"),
        ("x.safetensors", b"", "damaged or no safetensors file"),
        ("x.safetensors", (files / "m.safetensors").read_bytes()[:-1], "damaged or no safetensors file"),
        ("x.safetensors", (files / "a.fcar").read_bytes(), "damaged or no safetensors file"),
        ("x.bin", b"GIF89a", "x.bin is no image"),
    ):
        (files / name).write_bytes(content)
        refused("info", files / name, match=match)
    refused("info", files / "none.fcar", match="cannot be read: No such file")
    refused("info", "nonsense", match="nonsense is neither a file nor a preset; presets are test, ")
    refused("info", "test", "--listing", match="--listing needs an image")
    refused("info", match="Missing argument 'THING'")
    refused("info", "test", "test", match="unexpected extra argument")


# Simulate and compare.


def test_engines_make_the_same_video(fastcar, files):
    np.save(files / "p.npy", np.array([[3, 1, 4]], dtype=np.uint16))
    (files / "p.json").write_text("[[3, 1, 4]]")
    arguments = ("--frames", 2, "--gate", "tas", "--threshold", -1, "--threshold", 0.5, "--json", "-")
    hardware = fastcar("simulate", files / "a.fcar", "--prompt", files / "p.npy", *arguments, "--out", files / "v")
    twin = fastcar("simulate", files / "a.fcar", "--engine", "twin", "--prompt", files / "p.json", *arguments,
                   "--out", files / "t")  # fmt: skip
    assert (hardware.code, twin.code) == (0, 0)
    assert tree(files / "v") == tree(files / "t") == {"tokens.npy", "counters.json"}
    tokens = np.load(files / "v" / "tokens.npy")
    assert tokens.shape == (1, 8)
    assert tokens[0, :3].tolist() == [3, 1, 4]
    assert np.array_equal(tokens, np.load(files / "t" / "tokens.npy"))
    for name in ("tokens", "eligible", "replayed", "replay_ratio", "gate"):
        assert hardware.json[name] == twin.json[name]
    assert hardware.json["gate"]["threshold"] == [-1, 0.5]
    assert twin.json["counters"] is None
    counters = json.loads((files / "v" / "counters.json").read_text())["counters"]
    assert counters == hardware.json["counters"]
    assert 0 < hardware.json["bandwidth_utilisation"] < 1
    assert "cycles" in hardware.err and "mac utilisation" in hardware.err


def test_the_seed_decides(fastcar, files):
    def tokens(seed):
        return fastcar(
            "simulate", files / "a.fcar", "--engine", "twin", "--topk", 8, "--seed", seed, "--out", files / "t",
            "--json", "-",
        ).json["tokens"]  # fmt: skip

    assert tokens(1) == tokens(1) != tokens(2)


def test_compare_finds_no_difference(fastcar, files):
    arguments = ("--gate", "always", "--topk", 4, "--temperature", 2, "--stall", 0.1, "--bandwidth", 0.5)
    ending = fastcar("compare", files / "a.fcar", *arguments, "--latency", 7, "--out", files / "c")
    assert ending.code == 0
    assert re.search(r"RTL and twin agree: [\d,]+ integers of \d+ operations, 14 decisions, 8 tokens", ending.out)
    found = json.loads((files / "c" / "comparison.json").read_text())
    assert found["difference"] is None
    assert found["mismatches"] == 0
    assert found["integers"] > 1000
    assert tree(files / "c") == {"tokens.npy", "counters.json", "comparison.json"}


def test_compare_reports_the_first_difference(fastcar, files, monkeypatch):
    monkeypatch.setattr(running, "quantized_model", lambda _: quantized(TEST, 2))
    ending = fastcar("compare", files / "a.fcar", "--frames", 1, "--prompt", files / "p.json", "--out", files / "c")
    assert ending.code == 2
    (files / "p.json").write_text("[[3]]")
    ending = fastcar("compare", files / "a.fcar", "--frames", 1, "--prompt", files / "p.json", "--out", files / "c")
    assert ending.code == 1
    match = re.search(
        r"error: position 0, layer 0, operation EMBED, lane 0, index (\d+): twin has (-?\d+), hardware has (-?\d+)$",
        ending.err.strip(),
    )
    assert match, ending.err
    # What was measured is there all the same.
    found = json.loads((files / "c" / "comparison.json").read_text())["difference"]
    assert [found[name] for name in ("index", "expected", "actual")] == [int(text) for text in match.groups()]


def test_pysim_compares_and_writes_waveforms(fastcar, files):
    arguments = ("--engine", "pysim", "--frames", 1, "--vcd", files / "w.vcd", "--out", files / "c")
    ending = fastcar("compare", files / "short.fcar", *arguments, "--prompt", files / "p.json")
    assert ending.code == 2
    assert not (files / "w.vcd").exists()
    (files / "p.json").write_text("[[3]]")
    assert fastcar("compare", files / "short.fcar", *arguments, "--prompt", files / "p.json").code == 0
    assert "$enddefinitions" in (files / "w.vcd").read_text()
    assert not [name for name in tree(files) if ".fastcar-" in name]


@pytest.mark.filterwarnings("ignore")
def test_ctrl_c_stops_a_simulation(refused, files):
    """Wherever it is when the signal comes: the whole run would take half a minute."""
    before = tree(files)
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        refused("simulate", files / "a.fcar", "--engine", "pysim", "--vcd", files / "w.vcd", "--out", files / "x" / "y",
                "--json", files / "x.json", match="interrupted", code=130)  # fmt: skip
    finally:
        timer.cancel()
    assert tree(files) == before
    # What was cut short complains when it is collected: here, not in another test.
    gc.collect()


def test_a_request_to_end_leaves_nothing_half_written(files, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", "from fastcar_sw.cli import main; main()", "simulate", str(files / "a.fcar"),
               "--engine", "pysim", "--vcd", str(out / "w.vcd"), "--out", str(out / "x")]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(out.iterdir()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said.strip().endswith("interrupted")
    assert not list(out.iterdir())


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("none.fcar",), "image none.fcar cannot be read: No such file"),
        (("m.safetensors",), "is not a FastCar image"),
        (("a.fcar", "--config", "test-2x2"), r"image is for hardware [0-9a-f]{16}, but 'test-2x2' is"),
        (("a.fcar", "--config", "nix"), "unknown accelerator preset 'nix'"),
        (("a.fcar", "--engine", "qemu"), "--engine must be one of verilator, pysim"),
        (("a.fcar", "--frames", "0"), "Invalid value for '--frames'"),
        (("a.fcar", "--frames", "5"), r"--frames must be in 1..4 \(the KV cache\), not 5"),
        (("a.fcar", "--gate", "sometimes"), "--gate must be one of never, always, tas, not 'sometimes'"),
        (("a.fcar", "--gate", "forced"), "--gate must be one of never, always, tas"),
        (("a.fcar", "--threshold", "1"), "--threshold needs the gate tas, not never"),
        (("a.fcar", "--gate", "tas", *("--threshold", "1") * 3), "number of thresholds must be layers=2, not 3"),
        (("a.fcar", "--gate", "tas", "--threshold", "nan"), "threshold must be a number"),
        (("a.fcar", "--definition", "mine"), "gate definition must be one of paper, reference-code"),
        (("a.fcar", "--warmup", "-1"), "warmup_frames must be"),
        (("a.fcar", "--topk", "9"), "topk must be at most topk_max=8, not 9"),
        (("a.fcar", "--topk", "-1"), "topk must be an integer in 0..64"),
        (("a.fcar", "--topk", "many"), "Invalid value for '--topk'"),
        (("a.fcar", "--temperature", "0"), "temperature must be a number in 0.001..1000"),
        (("a.fcar", "--latency", "0"), "memory latency must be"),
        (("a.fcar", "--bandwidth", "2"), "memory beats_per_cycle must be"),
        (("a.fcar", "--stall", "1"), "memory stall must be"),
        (("a.fcar", "--vcd", "a.vcd"), "--vcd needs the engine pysim, not verilator"),
        (("a.fcar", "--prompt", "none.npy"), "prompt none.npy cannot be read: No such file"),
        (("a.fcar", "--prompt", "a.fcar"), "prompt a.fcar must be a .npy or a .json file"),
        (("a.fcar", "--foo"), "No such option: --foo"),
        ((), "Missing argument 'IMAGE'"),
    ],
)
def test_runs_that_do_not_fit_are_refused(refused, files, monkeypatch, command, arguments, match):
    monkeypatch.chdir(files)
    before = tree(files)
    refused(command, *arguments, "--out", files / "out", match=match)
    assert tree(files) == before


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[[32]]", r"tokens of prompt .* must be in 0..31, not 32..32"),
        ("[[-1, 1]]", r"must be in 0..31, not -1..1"),
        (f"[[{10**30}]]", r"must be in 0..31, not 1000"),
        (f"[[{'9' * 5000}]]", "damaged"),
        (json.dumps([[1] * 17]), r"must have at most 16 positions \(the KV cache\), not 17"),
        (json.dumps([[1] * 5]), "prompt must have at most --frames 1 x 4 positions, not 5"),
        ("[[1], [2]]", "must have 1..1 lanes, not 2"),
        ("[[1, 2], [3]]", "same number of tokens"),
        ("[[]]", "same number of tokens"),
        ("[]", "must hold a list with a list of tokens"),
        ("{}", "must hold a list with a list of tokens"),
        ("[1]", "must hold a list with a list of tokens"),
        ("[[1.5]]", "must hold integers, not 1.5"),
        ("[[true]]", "must hold integers, not true"),
        ("[[null]]", "must hold integers, not null"),
        ("[[1]", "damaged"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(refused, files, content, match):
    (files / "p.json").write_text(content)
    refused("simulate", files / "a.fcar", "--prompt", files / "p.json", "--frames", 1, "--out", files / "out",
            match=match)  # fmt: skip
    assert not (files / "out").exists()


def test_arrays_that_do_not_fit_are_refused(refused, files):
    path = files / "p.npy"
    arguments = ("simulate", files / "a.fcar", "--prompt", path, "--out", files / "out")
    for array, match in (
        (np.zeros(3, dtype=int), "must hold integers"),
        (np.zeros((1, 3)), "must hold integers"),
        (np.zeros((1, 3), dtype=bool), "must hold integers"),
        (np.zeros((0, 3), dtype=int), "must hold integers"),
        (np.full((1, 2), 2**64 - 1, dtype=np.uint64), "must be in 0..31"),
        (np.array([[None]], dtype=object), "damaged"),
    ):
        np.save(path, array)
        refused(*arguments, match=match)
    np.save(path, np.zeros((1, 3), dtype=int))
    whole = path.read_bytes()
    for content in (b"", b"x", whole[:5], whole[:20], whole[:-1], b"PK\3\4", b"\x80\4K\1."):
        path.write_bytes(content)
        refused(*arguments, match="prompt .*p.npy is damaged")
    path.write_bytes(whole.replace(b"(1, 3)", b"(9999999999, 3)"))
    refused(*arguments, match="prompt .*p.npy is damaged")
    np.savez(files / "p.npz", a=np.zeros(3))
    path.write_bytes((files / "p.npz").read_bytes())
    refused(*arguments, match="prompt .*p.npy is damaged")


def test_a_missing_compiler_is_named(refused, files, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    for command in ("simulate", "compare"):
        refused(command, files / "a.fcar", "--out", files / "out", match="C\\+\\+ compiler 'no-such-compiler'")
    assert not (files / "out").exists()


def test_an_image_without_its_model_is_refused(refused, files):
    """Its checksums are right, its weights are another model's."""
    other = compile_image(quantized(TEST, 2), accelerator_preset("test"))[0]
    sections = image().sections
    start = sections["embedding"][0]
    mixed = Image(**{**vars(image()), "memory": image().memory[:start] + other.memory[start:]})
    mixed.save(files / "x.fcar")
    refused("compare", files / "x.fcar", "--out", files / "out", match="image must hold the model")


def test_help_and_unknown_commands(fastcar, refused):
    ending = fastcar("--help")
    assert ending.code == 0
    for name in ("demo", "generate", "info", "simulate", "compare"):
        assert name in ending.out
        assert fastcar(name, "--help").code == 0
    refused("nonsense", match="No such command 'nonsense'")
