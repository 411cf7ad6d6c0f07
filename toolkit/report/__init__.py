"""A run on a page to look at: report.html, one file that needs no network."""
