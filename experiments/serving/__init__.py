"""What is done to a server of evaluations, and what must hold meanwhile."""
