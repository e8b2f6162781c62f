"""What predictions of kernels' times are worth to a search, on spaces and families that were measured."""
