"""The built-in tasks, one folder each, as a user would write one."""
