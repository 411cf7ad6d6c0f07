"""Conversations, chat templates, and models that reply."""
