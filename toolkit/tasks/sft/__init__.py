"""Supervised fine-tuning: a model learns to reply as the assistant of given conversations does."""
