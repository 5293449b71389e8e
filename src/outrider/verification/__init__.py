"""Pure functions: proposal + target distribution + noise -> ``VerifyResult``. Knows nothing about models or
requests."""
