"""Extractive question answering: questions, contexts, and answers that are spans of them."""
