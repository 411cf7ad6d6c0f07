"""Language modelling: documents as blocks of tokens."""
