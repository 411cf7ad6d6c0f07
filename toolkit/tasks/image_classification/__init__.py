"""Images with labels: reading, checking, augmenting."""
