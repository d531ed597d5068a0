"""The engine stops cleanly, says where, and works again."""

import dataclasses

import numpy as np
import pytest

from fastcar_sw.compare import compare
from fastcar_sw.driver import Driver, memory_needed
from fastcar_sw.engines.link import EngineError, MemorySettings, RequestError
from fastcar_sw.engines.verilator import VerilatorLink
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import ImageError

LIMIT = 400_000


@pytest.mark.parametrize("engine", ["verilator", "pysim"])
def test_a_bus_error_stops_the_engine_and_says_where(video, engine):
    image = video().parts[2]
    at = image.sections["layers"][0] + 100
    with pytest.raises(EngineError, match="READ_BUS.*position 0, layer 0"):
        video(engine=engine, memory=MemorySettings(fail_at=at)).hardware()


def test_a_write_error_stops_the_engine(video):
    config, _, image, layout = video().parts
    heap = -(-len(image.memory) // 4096) * 4096
    at = heap + layout.token_offset(6, 0)
    with pytest.raises(EngineError, match="WRITE_BUS"):
        video(total=8, memory=MemorySettings(fail_at=at)).hardware()


def test_the_engine_works_again_after_an_error(video):
    """Without a reset, on the same link."""
    config, _, image, _ = video().parts
    case = video(gate=GateSettings(kind="always"))
    with VerilatorLink(config, memory_needed(image)) as link:
        driver = Driver(link)
        driver.load(image)
        for at in (image.sections["layers"][0] + 100, image.sections["head"][0] + 8, image.sections["program"][0]):
            link.set_memory(MemorySettings(fail_at=at))
            with pytest.raises(EngineError, match="READ_BUS"):
                driver.generate(case.tokens, case.total, case.gate, max_cycles=LIMIT)
            link.set_memory(MemorySettings(stall=0.1, seed=3))
            run = driver.generate(case.tokens, case.total, case.gate, max_cycles=LIMIT)
            assert compare(run, case.twin()).difference is None


def test_a_token_outside_the_vocabulary_traps(video):
    config, model, image, _ = video().parts
    with VerilatorLink(config, memory_needed(image)) as link:
        driver = Driver(link)
        # The driver would refuse the token, so it is told of a larger vocabulary.
        driver.load(dataclasses.replace(image, model=image.model.replace(vocab=2 * model.config.vocab)))
        with pytest.raises(EngineError, match="TRAP"):
            driver.generate(np.full((1, 5), model.config.vocab), 6, max_cycles=LIMIT)


def test_a_stranger_is_refused_by_driver_and_hardware(video):
    config, _, image, _ = video().parts
    other = video(accelerator="test-2x2").parts[2]
    with VerilatorLink(config, memory_needed(image)) as link:
        driver = Driver(link)
        with pytest.raises(EngineError, match="image must be loaded"):
            driver.generate(video().tokens, 6)
        with pytest.raises(ImageError, match="image is for hardware"):
            driver.load(other)
        for change, code in (
            ({"config_hash": config.hash, "memory": other.memory}, "BAD_CONFIG"),
            ({"memory": b"FOREIGN!" + image.memory[8:]}, "BAD_MAGIC"),
            ({"model_hash": image.model_hash ^ 1}, "BAD_MODEL"),
        ):
            driver.load(dataclasses.replace(image, **change))
            with pytest.raises(EngineError, match=code):
                driver.generate(video().tokens, 6, max_cycles=LIMIT)
        driver.load(image)
        run = driver.generate(video().tokens, 7, max_cycles=LIMIT)
        assert compare(run, video().twin()).difference is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total": 17}, "total must be an integer in 1..16"),
        ({"total": 4}, "prompt must have the shape"),
        ({"prompt": np.zeros((2, 3), dtype=int)}, "prompt must have the shape"),
        ({"prompt": np.full((1, 3), -1)}, "prompt tokens must be in 0..31"),
        ({"prompt": np.full((1, 3), 32)}, "prompt tokens must be in 0..31"),
        ({"forced": np.zeros((2, 2, 1), dtype=bool)}, "forced decisions must have the shape"),
    ],
)
def test_arguments_that_do_not_fit_never_reach_the_engine(video, arguments, message):
    config, _, image, _ = video().parts
    with VerilatorLink(config, memory_needed(image)) as link:
        driver = Driver(link)
        driver.load(image)
        with pytest.raises(RequestError, match=message):
            driver.generate(**{"prompt": video().tokens, "total": 6, **arguments})


def test_a_run_that_hangs_is_given_up(video):
    config, _, image, _ = video().parts
    with VerilatorLink(config, memory_needed(image), MemorySettings(latency=1 << 19)) as link:
        driver = Driver(link)
        driver.load(image)
        with pytest.raises(EngineError, match="did not end in 1000 cycles: position 0"):
            driver.generate(video().tokens, 6, max_cycles=1000)


def test_a_memory_that_is_too_small_is_refused(video):
    config, _, image, _ = video().parts
    with VerilatorLink(config, memory_needed(image) - 1) as link, pytest.raises(EngineError, match="memory must have"):
        Driver(link).load(image)
    with VerilatorLink(config, 4096) as link:
        with pytest.raises(EngineError, match="memory has 4096 bytes"):
            link.read_memory(4000, 100)
        with pytest.raises(EngineError, match="answered with an error"):
            link.read(0x3FFC)


def test_memory_settings_are_checked():
    for name, value in (("latency", 0), ("beats_per_cycle", 0.0), ("stall", 1.0), ("seed", -1)):
        with pytest.raises(EngineError, match=f"memory {name} must be"):
            MemorySettings(**{name: value})
