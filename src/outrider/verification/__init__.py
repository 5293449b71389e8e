"""Verifiers: pure functions from a proposal, the target's probabilities and noise to a ``VerifyResult``.

They know nothing about models or requests.
"""
