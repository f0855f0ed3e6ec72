"""What a recording upstream does with a request; see ``tests.kit.upstream``."""

from gateway.faultkit.answers import Answer, Gate, cut, drip, early, gated, hang, raw, respond

__all__ = ["Answer", "Gate", "cut", "drip", "early", "gated", "hang", "raw", "respond"]
