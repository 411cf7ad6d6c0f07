"""`toolkit predict`: predictions for the rows of a file, in any number of processes."""
