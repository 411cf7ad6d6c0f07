"""Texts with labels: one label each, several, or a number."""
