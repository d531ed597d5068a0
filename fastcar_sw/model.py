"""Models on disk: what can be wrong with them."""

__all__ = ["ModelError"]


class ModelError(ValueError):
    """A model, or a file of one, broke a rule; the message is one line that says which."""
