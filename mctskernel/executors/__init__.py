"""Who does the evaluations."""
