"""Curves for a team's tracker: what a run has written into its ledger is sent on, by a process of its own."""
