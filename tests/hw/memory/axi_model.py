"""AXI4 memories for the benches of the memory side: they stall at random, answer late or with errors, and judge.

Every rule of the protocol that a master can break is asserted here, in the cycle in which it is broken.
"""

import random
from collections import deque
from dataclasses import dataclass

from fastcar_hw.config import AcceleratorConfig
from fastcar_hw.memory.axi import BURST_INCR, Response

PAGE = 4096


@dataclass(frozen=True)
class Behaviour:
    """What a memory does.

    ``latency`` cycles pass from the transfer of a request (of the last beat, for writes) to the first transfer of its
    answer; the pauses are probabilities a cycle; a burst that touches an address of ``failing`` is answered with its
    response (a read from that beat on).
    """

    latency: int = 1
    ask_pause: float = 0.0
    beat_pause: float = 0.0
    answer_pause: float = 0.0
    seed: int = 0
    failing: tuple[tuple[int, Response], ...] = ()

    def response(self, addr: int, size: int) -> Response:
        """Return the answer to an access."""
        return next((response for at, response in self.failing if addr <= at < addr + size), Response.OKAY)


@dataclass(frozen=True)
class Burst:
    """A request, and the cycle in which it was transferred."""

    cycle: int
    addr: int
    beats: int


def content(addr: int, size: int) -> bytes:
    """Return what memory holds before anybody writes: bytes that tell their addresses apart."""
    return bytes((at * 167 + (at >> 8) * 59 + (at >> 16) * 31) & 255 for at in range(addr, addr + size))


class Held:
    """A stream whose transfers, once offered, must stay until they are taken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._offered = None

    def check(self, valid: int, ready: int, payload: object) -> bool:
        """Look at a cycle; return whether a transfer happened."""
        if self._offered is not None:
            assert valid, f"{self.name} withdrawn"
            assert payload == self._offered, f"{self.name} changed from {self._offered} to {payload}"
        self._offered = payload if valid and not ready else None
        return bool(valid and ready)


class _Memory:
    def __init__(self, config: AcceleratorConfig, port: object) -> None:
        self.config, self.port = config, port
        self.beat = config.derived.beat_bytes
        self.window = (0, (1 << config.address_width) - 1)
        self.behave(Behaviour())

    def behave(self, behaviour: Behaviour, window: tuple[int, int] | None = None) -> None:
        """Set what happens in the next run; ``window`` is where the master may go (first and last byte)."""
        self.behaviour = behaviour
        self.window = window or self.window
        self.requests: list[Burst] = []
        self.asked = 0
        self.most_in_flight = 0

    def _pauses(self):
        draw = random.Random(self.behaviour.seed).random
        return lambda probability: bool(probability) and draw() < probability

    def _accept(self, cycle: int, request: object) -> Burst:
        """Judge a request."""
        burst = Burst(cycle, request.addr, request.len + 1)
        size = burst.beats * self.beat
        assert request.burst == BURST_INCR
        assert 1 << request.size == self.beat
        assert burst.addr % self.beat == 0, f"{burst} is misaligned"
        assert burst.beats <= self.config.burst_beats, f"{burst} is too long"
        assert burst.addr // PAGE == (burst.addr + size - 1) // PAGE, f"{burst} crosses 4 KiB"
        assert self.window[0] <= burst.addr, f"{burst} starts before the window"
        assert burst.addr + size - 1 <= self.window[1], f"{burst} ends behind the window"
        self.requests.append(burst)
        self.asked += burst.beats
        return burst


class ReadMemory(_Memory):
    """The read channels.

    Attributes
    ----------
    requests : list of `Burst`; asked : int
        Requests that were accepted, and all beats of them.
    landed : list of int
        Cycles in which beats were transferred.
    most_in_flight, most_beats : int
        Most bursts that were accepted and not answered completely; most beats of them.
    """

    async def serve(self, ctx) -> None:
        """Answer until the simulation ends (a background testbench)."""
        b, port, pause = self.behaviour, self.port, self._pauses()
        self.landed = []
        self.most_beats = 0
        held = Held("AR")
        waiting = deque()  # (first cycle, payload)
        bursts = cycle = 0
        ready = valid = False
        async for _, reset, asked, request, taken in ctx.tick().sample(port.ar.valid, port.ar.payload, port.r.ready):
            assert not reset
            if valid and taken:
                _, payload = waiting.popleft()
                bursts -= payload["last"]
                self.landed.append(cycle)
                valid = False
            if held.check(asked, ready, request):
                burst = self._accept(cycle, request)
                for i in range(burst.beats):
                    addr = burst.addr + i * self.beat
                    payload = {
                        "data": int.from_bytes(content(addr, self.beat), "little"),
                        "resp": b.response(addr, self.beat),
                        "last": i == burst.beats - 1,
                    }
                    waiting.append((cycle + b.latency, payload))
                bursts += 1
            self.most_in_flight = max(self.most_in_flight, bursts)
            self.most_beats = max(self.most_beats, len(waiting))
            cycle += 1
            if not valid and waiting and waiting[0][0] <= cycle and not pause(b.beat_pause):
                valid = True
                ctx.set(port.r.payload, waiting[0][1])
            ctx.set(port.r.valid, valid)
            ready = not pause(b.ask_pause)
            ctx.set(port.ar.ready, ready)


class WriteMemory(_Memory):
    """The write channels.

    Attributes
    ----------
    requests : list of `Burst`; asked : int
        Requests that were accepted, and all beats of them.
    data : dict
        Byte of each address that was written.
    beats : list of (cycle, addr, data, strobe)
        Beats as transferred.
    answered : list of int
        Cycles in which responses were transferred.
    most_in_flight : int
        Most bursts that were accepted and not answered.
    """

    async def serve(self, ctx) -> None:
        """Answer until the simulation ends (a background testbench)."""
        b, port, pause = self.behaviour, self.port, self._pauses()
        self.data, self.beats, self.answered = {}, [], []
        asks, data = Held("AW"), Held("W")
        expected = deque()  # (address, is last, response of the burst)
        answers = deque()  # (first cycle, response)
        in_flight = cycle = 0
        ask_ready = data_ready = answering = False
        async for _, reset, asked, request, offered, beat, taken in ctx.tick().sample(
            port.aw.valid, port.aw.payload, port.w.valid, port.w.payload, port.b.ready
        ):
            assert not reset
            if answering and taken:
                answers.popleft()
                self.answered.append(cycle)
                in_flight -= 1
                answering = False
            # Requests of this cycle do not count yet: data may not even be offered together with them.
            assert not offered or expected, "W offered before its AW was accepted"
            if data.check(offered, data_ready, beat):
                addr, last, response = expected.popleft()
                assert beat.last == last, f"last is {beat.last} in the beat at {addr:#x}"
                self.beats.append((cycle, addr, beat.data, beat.strb))
                for i in range(self.beat):
                    if beat.strb >> i & 1:
                        self.data[addr + i] = beat.data >> 8 * i & 255
                if last:
                    answers.append((cycle + b.latency, response))
            if asks.check(asked, ask_ready, request):
                burst = self._accept(cycle, request)
                in_flight += 1
                response = b.response(burst.addr, burst.beats * self.beat)
                expected.extend(
                    (burst.addr + i * self.beat, i == burst.beats - 1, response) for i in range(burst.beats)
                )
            self.most_in_flight = max(self.most_in_flight, in_flight)
            cycle += 1
            if not answering and answers and answers[0][0] <= cycle and not pause(b.answer_pause):
                answering = True
                ctx.set(port.b.payload.resp, answers[0][1])
            ctx.set(port.b.valid, answering)
            ask_ready, data_ready = not pause(b.ask_pause), not pause(b.beat_pause)
            ctx.set(port.aw.ready, ask_ready)
            ctx.set(port.w.ready, data_ready)
