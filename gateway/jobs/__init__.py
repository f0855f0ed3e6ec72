"""Jobs inside the server: what callers may do with them, and the reaper."""
