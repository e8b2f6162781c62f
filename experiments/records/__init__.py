"""How results are written, with what made them, and which of them docs/results holds."""
