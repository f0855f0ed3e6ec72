"""The script of `fencegate drill` against other people's queues: alone, and with the recipes of
docs/integrate.md. `python3 dev.py compare` writes what it finds into docs/comparison.md."""
