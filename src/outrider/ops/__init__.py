"""Tensor primitives behind one small interface."""
