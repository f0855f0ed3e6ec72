"""The gateway as a competent team writes it in an afternoon, with two clients: the baselines.

Durable and correct on a good day: two transactions a command, a row for each key and entity, the
fence compared. No unknown outcomes, no limits, no audit, no fingerprints of JSON, no gateway keys.
"""
