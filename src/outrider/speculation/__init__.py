"""Who drafts, how many tokens, and what was learnt: one owner, the ``Speculator``."""
