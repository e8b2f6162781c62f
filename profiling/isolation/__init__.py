"""What a process that meets hostile input may still do: the policy, and the mechanisms of Linux that hold it to it."""
