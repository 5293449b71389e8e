"""Sources of cheap tokens for the target to verify."""
