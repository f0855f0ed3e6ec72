"""Whole programs as processes, as a user starts them."""
