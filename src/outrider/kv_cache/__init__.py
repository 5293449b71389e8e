"""The paged KV cache: blocks, block tables, and the memory they stand for."""
