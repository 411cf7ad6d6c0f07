"""Pairs of a chosen and a rejected completion, and a model beside its reference."""
