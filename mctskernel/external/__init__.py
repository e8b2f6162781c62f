"""Edits from outside: other programs ask and tell, coding agents over the Model Context Protocol."""
