"""The load: by wrk where it is installed, else by a small generator with the same requests."""

from benchmarks.load.generator import Kind, Load, Seen, Target, generator, run

__all__ = ["Kind", "Load", "Seen", "Target", "generator", "run"]
