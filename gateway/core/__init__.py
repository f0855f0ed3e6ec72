"""The pure core: values in, values out. No IO, clock, randomness, logging or framework."""
