"""Marks in a text that comes piece by piece."""

from __future__ import annotations


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``mark``."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
