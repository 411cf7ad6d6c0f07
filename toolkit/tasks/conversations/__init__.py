"""What is common to all that learns from conversations."""
