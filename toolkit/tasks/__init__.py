"""One folder for each task, by the field's name for it; none imports another."""
