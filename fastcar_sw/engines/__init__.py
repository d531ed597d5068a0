"""Engines: what runs an image and gives tokens, counters and a trace."""
