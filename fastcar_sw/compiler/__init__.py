"""Compiler: quantized model and hardware configuration to program and memory image."""
