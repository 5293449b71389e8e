"""Models: what a forward pass takes, the decoder, and toys with a known distribution."""
