"""A module for each tracker: how a run is begun there, found again, and asked for what is there already."""
