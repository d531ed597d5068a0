"""Runs inside the simulator: the project's driver on cocotbext-axi's memory and AXI4-Lite master."""

import json
import os
import random
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, First, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from fastcar_hw.presets import accelerator_preset
from fastcar_sw.driver import Driver
from fastcar_sw.engines.link import EngineError, Link
from fastcar_sw.gates import GateSettings
from fastcar_sw.image import Image


class CocotbLink(Link):
    """The driver's view of a design among models that this project did not write."""

    batch = 2000

    def __init__(self, config, dut, lite, ram, size):
        self.config, self.memory_bytes = config, size
        self._dut, self._lite, self._ram = dut, lite, ram

    def read(self, offset):
        answer = resume(self._lite.read)(offset, 4)
        if answer.resp:
            raise EngineError(f"register at {offset:#x} answered with an error")
        return int.from_bytes(answer.data, "little")

    def write(self, offset, value):
        answer = resume(self._lite.write)(offset, value.to_bytes(4, "little"))
        if answer.resp:
            raise EngineError(f"register at {offset:#x} answered with an error")

    def read_memory(self, address, size):
        return bytes(self._ram.read(address, size))

    def write_memory(self, address, data):
        self._ram.write(address, data)

    def wait(self, cycles):
        async def until_interrupt():
            if not int(self._dut.irq.value):
                await First(RisingEdge(self._dut.irq), ClockCycles(self._dut.aclk, cycles))
            return bool(int(self._dut.irq.value))

        return resume(until_interrupt)()


def pauses(seed, probability):
    rng = random.Random(seed)
    while True:
        yield rng.random() < probability


@cocotb.test()
async def video(dut):
    job = json.loads(Path(os.environ["FASTCAR_JOB"]).read_text())
    config = accelerator_preset(job["accelerator"])
    size = 1 << 20
    Clock(dut.aclk, 10, "ns").start()
    dut.aresetn.value = 0
    lite = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.aclk, dut.aresetn, reset_active_level=False)
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.aclk, dut.aresetn, reset_active_level=False, size=size)
    channels = (
        ram.write_if.aw_channel, ram.write_if.w_channel, ram.write_if.b_channel, ram.read_if.ar_channel,
        ram.read_if.r_channel, lite.write_if.aw_channel, lite.write_if.w_channel, lite.write_if.b_channel,
        lite.read_if.ar_channel, lite.read_if.r_channel,
    )  # fmt: skip
    for number, channel in enumerate(channels):
        channel.set_pause_generator(pauses(job["seed"] + number, job["pause"]))
    await ClockCycles(dut.aclk, 5)
    dut.aresetn.value = 1
    await ClockCycles(dut.aclk, 5)

    def drive():
        driver = Driver(CocotbLink(config, dut, lite, ram, size))
        driver.load(Image.load(job["image"]))
        gate = GateSettings(**job["gate"])
        return driver.generate(np.array(job["prompt"]), job["total"], gate, max_cycles=400_000)

    run = await bridge(drive)()
    Path(job["result"]).write_text(
        json.dumps({"tokens": run.tokens.tolist(), "replayed": run.replayed.tolist(), "cycles": run.counters["cycles"]})
    )
