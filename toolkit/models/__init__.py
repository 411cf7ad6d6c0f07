"""Models of Transformers: loaded, adapted, saved."""
