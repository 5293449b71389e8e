"""Workers for other engines. They run in the peers' own environment and import nothing of Outrider."""
