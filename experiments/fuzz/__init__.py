"""What fuzzing gives readers of files that come from elsewhere, and what it holds against them."""
