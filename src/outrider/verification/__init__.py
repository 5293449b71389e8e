"""Pure functions: proposal + target law + noise -> ``VerifyResult``. Knows nothing about models or requests."""
