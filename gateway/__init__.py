"""Fencegate: a fencing-aware, idempotent side-effect gateway."""

__all__ = ["__version__"]

__version__ = "0.1.0"
