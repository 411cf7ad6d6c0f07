"""Settings: what there are, and how they are read."""
