"""From logits to probabilities to tokens: the law, and the keyed noise. Knows nothing about models or requests."""
