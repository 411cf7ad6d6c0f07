"""A trained model onto a hub: which files, what the hub says, and the command."""
