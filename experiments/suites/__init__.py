"""Sets of tasks that are searched on a GPU: the built-in ones, and those of the plain suite (`plain_`)."""
