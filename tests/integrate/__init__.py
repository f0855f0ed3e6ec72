"""Other people's queues, with the recipes of docs/integrate.md as they stand there."""
