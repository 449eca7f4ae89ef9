"""Tensor mathematics that merge methods share."""
