"""From logits to probabilities to tokens: the distribution, and the keyed noise. Knows nothing about models or
requests."""
