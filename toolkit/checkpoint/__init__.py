"""Sealed checkpoints: how they are written, read and gone on from."""
