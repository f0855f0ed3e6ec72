"""Real partitions: W1 lives in a network namespace of its own, and the kernel drops its packets."""
