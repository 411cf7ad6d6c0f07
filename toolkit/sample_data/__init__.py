"""The embedded data: made from what is on every machine, once per machine."""
