"""Proof that speculation changes nothing: exact enumeration, planted faults, named properties."""
