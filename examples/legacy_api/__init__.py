"""A small HTTP service as people have them: it does what it is told, every time it is told.

It knows no idempotency keys and no fences. Each POST appends one effect to its ledger, so the
ledger counts what really happened. `README.md` beside this file lists endpoints and switches.
"""
