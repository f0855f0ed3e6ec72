"""Postgres: admission, settlement, audit, migrations and the embedded server."""
