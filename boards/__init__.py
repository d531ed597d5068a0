"""Boards: what stands between the accelerator and the pins, and the way to a bitstream."""
