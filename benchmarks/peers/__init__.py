"""Idempotency middlewares that people install today, each on its own stack and with the fastest
store that it has, which is memory: no database, nothing survives the process, no fences."""
