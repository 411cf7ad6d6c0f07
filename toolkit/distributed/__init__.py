"""Processes: how they find each other, agree, share a model, and end together."""
