"""Videos: procedural traffic, patch tokenizer, files and metrics."""
