"""Sentence embeddings: data, losses, search."""
