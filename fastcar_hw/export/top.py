"""The accelerator with flat ports under the names of the AMBA buses."""

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..accelerator import Accelerator
from ..config import AcceleratorConfig
from ..memory.axi import CACHE_NORMAL
from ..registers_map import register_map

__all__ = ["AxiTop"]

#: Fields of the payload of each channel, by prefix of the port names.
_ADDRESS = ("addr", "len", "size", "burst")
_LITE_ADDRESS = ("addr", "prot")


class AxiTop(wiring.Component):
    """`Accelerator` for the world outside of Amaranth.

    Bus tools recognise the interfaces by their names: ``m_axi_*`` (AXI4 master), ``s_axil_*`` (AXI4-Lite slave),
    clock ``aclk``, reset ``aresetn`` (active low, synchronous).

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    accelerator
        The design inside.

    Notes
    -----
    Adds no logic but the inverter of the reset.  ``m_axi_arcache``, ``m_axi_awcache`` and the ``prot`` outputs are
    constants; what AXI4 defines beyond these ports (identifiers, locks, regions) may stay unconnected: all
    transactions are in order.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.accelerator = Accelerator(config)
        width, beat = config.address_width, config.derived.data_width
        lite = register_map(config).addr_width
        ports = {"aclk": In(1), "aresetn": In(1), "irq": Out(1)}
        for channel in ("ar", "aw"):
            ports |= {
                f"m_axi_{channel}addr": Out(width), f"m_axi_{channel}len": Out(8), f"m_axi_{channel}size": Out(3),
                f"m_axi_{channel}burst": Out(2), f"m_axi_{channel}cache": Out(4), f"m_axi_{channel}prot": Out(3),
                f"m_axi_{channel}valid": Out(1), f"m_axi_{channel}ready": In(1),
            }  # fmt: skip
        ports |= {
            "m_axi_rdata": In(beat), "m_axi_rresp": In(2), "m_axi_rlast": In(1), "m_axi_rvalid": In(1),
            "m_axi_rready": Out(1),
            "m_axi_wdata": Out(beat), "m_axi_wstrb": Out(beat // 8), "m_axi_wlast": Out(1), "m_axi_wvalid": Out(1),
            "m_axi_wready": In(1), "m_axi_bresp": In(2), "m_axi_bvalid": In(1), "m_axi_bready": Out(1),
        }  # fmt: skip
        for channel in ("ar", "aw"):
            ports |= {
                f"s_axil_{channel}addr": In(lite), f"s_axil_{channel}prot": In(3), f"s_axil_{channel}valid": In(1),
                f"s_axil_{channel}ready": Out(1),
            }  # fmt: skip
        ports |= {
            "s_axil_wdata": In(32), "s_axil_wstrb": In(4), "s_axil_wvalid": In(1), "s_axil_wready": Out(1),
            "s_axil_bresp": Out(2), "s_axil_bvalid": Out(1), "s_axil_bready": In(1),
            "s_axil_rdata": Out(32), "s_axil_rresp": Out(2), "s_axil_rvalid": Out(1), "s_axil_rready": In(1),
        }  # fmt: skip
        self._traces = []
        if config.trace:
            for unit in ("matrix", "vector", "gate", "token"):
                for name, field in getattr(self.accelerator, f"trace_{unit}").shape():
                    ports[f"trace_{unit}_{name}"] = Out(field.width)
                    self._traces.append((unit, name))
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        m.domains.sync = ClockDomain()
        m.submodules.accelerator = inner = self.accelerator
        m.d.comb += [
            ClockSignal().eq(self.aclk),
            ResetSignal().eq(~self.aresetn),
            self.irq.eq(inner.irq),
        ]
        self._out(m, "m_axi_ar", inner.read.ar, _ADDRESS)
        self._in(m, "m_axi_r", inner.read.r, ("data", "resp", "last"))
        self._out(m, "m_axi_aw", inner.write.aw, _ADDRESS)
        self._out(m, "m_axi_w", inner.write.w, ("data", "strb", "last"))
        self._in(m, "m_axi_b", inner.write.b, ("resp",))
        self._in(m, "s_axil_aw", inner.host.aw, _LITE_ADDRESS)
        self._in(m, "s_axil_w", inner.host.w, ("data", "strb"))
        self._out(m, "s_axil_b", inner.host.b, ("resp",))
        self._in(m, "s_axil_ar", inner.host.ar, _LITE_ADDRESS)
        self._out(m, "s_axil_r", inner.host.r, ("data", "resp"))
        m.d.comb += [self.m_axi_arcache.eq(CACHE_NORMAL), self.m_axi_awcache.eq(CACHE_NORMAL)]
        for unit, name in self._traces:
            m.d.comb += getattr(self, f"trace_{unit}_{name}").eq(getattr(inner, f"trace_{unit}")[name])
        return m

    def _out(self, m, prefix: str, channel, fields: tuple[str, ...]) -> None:
        """Lead a channel out of the design."""
        m.d.comb += [
            getattr(self, f"{prefix}valid").eq(channel.valid),
            channel.ready.eq(getattr(self, f"{prefix}ready")),
            *(getattr(self, f"{prefix}{name}").eq(channel.payload[name]) for name in fields),
        ]

    def _in(self, m, prefix: str, channel, fields: tuple[str, ...]) -> None:
        """Lead a channel into the design."""
        m.d.comb += [
            channel.valid.eq(getattr(self, f"{prefix}valid")),
            getattr(self, f"{prefix}ready").eq(channel.ready),
            *(channel.payload[name].eq(getattr(self, f"{prefix}{name}")) for name in fields),
        ]
