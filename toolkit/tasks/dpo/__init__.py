"""Direct preference optimisation: pairs of a chosen and a rejected completion, a policy and its reference."""
