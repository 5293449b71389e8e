"""The paged KV cache: block pool, block tables, and K/V memory."""
