"""How fast it is: side by side with what it stands between, in one run, as ratios.

`python3 dev.py bench [--quick]`; what it measures and how stands in docs/benchmarks.md.
"""
