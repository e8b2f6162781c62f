"""What a GPU executes: cubins, their instructions and control flow, and what running them counts."""
