"""Rows of a table by their numbers."""


def reference(table, token):
    return table[token]
