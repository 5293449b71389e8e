"""Measurements: the kernels against memory bandwidth, and Outrider against named peers."""
