"""Proof: runs and checkpoints held against what they promise."""
