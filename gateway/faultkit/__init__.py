"""Faults to try a deployment with: a TCP proxy that loses what it is told to, and an upstream that
answers as it is told to and remembers what reached it. Failpoints are in ``gateway.faults``."""
