"""The embedded corpora: made from what is on every machine, once per machine."""
