"""Logits to probabilities to tokens, with keyed noise. Imports neither models nor the scheduler."""
