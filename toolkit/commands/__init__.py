"""The commands of `toolkit`: what each takes, and what it calls."""
