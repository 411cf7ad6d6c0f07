"""A module for each format of files that is read; `toolkit/data/files.py` says which ending stands for which."""
