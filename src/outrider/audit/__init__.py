"""The audit that speculation does not change the output distribution: enumeration, planted faults, properties."""
