"""The guarded path, in the order data flows: intake → admit → send → settle → respond."""
