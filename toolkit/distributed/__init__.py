"""Processes: how they meet, agree, share a model, and end together."""
