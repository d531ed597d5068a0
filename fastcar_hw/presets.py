"""Named configurations: a catalogue that tests sweep."""

from __future__ import annotations

from .config import AcceleratorConfig, ConfigError, ModelConfig

__all__ = ["ACCELERATORS", "MODELS", "accelerator_preset", "model_preset"]

MODELS: dict[str, ModelConfig] = {
    m.name: m
    for m in (
        # Small enough for Amaranth's own simulator.
        ModelConfig(name="test", vocab=32, hidden=16, layers=2, heads=2, kv_heads=2, head_dim=8, ffn=24,
                    tokens_per_frame=4, frames=4, frame_embedding=True),
        ModelConfig(name="test-gqa", vocab=32, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=40,
                    tokens_per_frame=4, frames=4),
        # The shipped video model.
        ModelConfig(name="traffic", vocab=256, hidden=128, layers=4, heads=4, kv_heads=4, head_dim=32, ffn=352,
                    tokens_per_frame=64, frames=8, frame_embedding=True),
        ModelConfig(name="iris", vocab=512, hidden=256, layers=10, heads=4, kv_heads=4, head_dim=64, ffn=1024,
                    tokens_per_frame=16, frames=20),
        ModelConfig(name="ivideogpt-138m", vocab=9216, hidden=768, layers=12, heads=12, kv_heads=12, head_dim=64,
                    ffn=3072, tokens_per_frame=16, frames=16),
        ModelConfig(name="vila-u-7b", vocab=32000, hidden=4096, layers=32, heads=32, kv_heads=32, head_dim=128,
                    ffn=11008, tokens_per_frame=256, frames=8),
        ModelConfig(name="lwm-7b", vocab=32000, hidden=4096, layers=32, heads=32, kv_heads=32, head_dim=128,
                    ffn=11008, tokens_per_frame=256, frames=8),
    )
}  # fmt: skip

ACCELERATORS: dict[str, AcceleratorConfig] = {
    a.name: a
    for a in (
        AcceleratorConfig.for_model(MODELS["test"], name="test", cores=1, rows=1, cols=8, lanes=1, vector_width=4,
                                    weight_fifo_depth=128, burst_beats=16, outstanding=4, program_words=512),
        AcceleratorConfig.for_model(MODELS["test"], name="test-2x2", cores=2, rows=2, cols=8, lanes=4,
                                    vector_width=2, weight_fifo_depth=128, burst_beats=16, outstanding=4,
                                    program_words=512),
        # Three lanes on two single-row cores: two passes over every tile, an odd lane left over.
        AcceleratorConfig.for_model(MODELS["test"], name="test-passes", cores=2, rows=1, cols=4, lanes=3,
                                    vector_width=2, weight_fifo_depth=64, burst_beats=16, outstanding=2,
                                    program_words=512),
        AcceleratorConfig.for_model(MODELS["test-gqa"], name="test-gqa", cores=1, rows=2, cols=8, lanes=2,
                                    vector_width=4, weight_fifo_depth=128, burst_beats=16, outstanding=4,
                                    program_words=1024),
        # As many lanes as there can be, four passes a tile, and the shortest load queue that cannot lock up.
        AcceleratorConfig.for_model(MODELS["test"], name="test-wide", cores=4, rows=2, cols=8, lanes=32,
                                    vector_width=4, weight_fifo_depth=256, burst_beats=16, outstanding=4,
                                    load_queue=4, program_words=512),
        # What the demonstration runs: one beat is 32 weights.
        AcceleratorConfig.for_model(MODELS["traffic"], name="tiny", cores=2, rows=1, cols=32, lanes=4,
                                    vector_width=8, weight_fifo_depth=1024),
        AcceleratorConfig.for_model(MODELS["traffic"], name="tiny-1", cores=1, rows=1, cols=16, lanes=1,
                                    vector_width=8, weight_fifo_depth=512),
        AcceleratorConfig.for_model(MODELS["vila-u-7b"], name="vila-u-7b", cores=4, rows=2, cols=64, lanes=8,
                                    vector_width=16, weight_fifo_depth=2048, program_words=4096,
                                    address_width=40),
    )
}  # fmt: skip


def model_preset(name: str) -> ModelConfig:
    """Return a model of the catalogue, or raise `ConfigError` naming those that exist."""
    try:
        return MODELS[name]
    except KeyError:
        raise ConfigError(f"unknown model preset {name!r}; presets are {', '.join(MODELS)}") from None


def accelerator_preset(name: str) -> AcceleratorConfig:
    """Return an accelerator of the catalogue, or raise `ConfigError` naming those that exist."""
    try:
        return ACCELERATORS[name]
    except KeyError:
        raise ConfigError(f"unknown accelerator preset {name!r}; presets are {', '.join(ACCELERATORS)}") from None
