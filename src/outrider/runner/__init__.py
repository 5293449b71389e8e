"""Runs a model over a batch of requests."""
