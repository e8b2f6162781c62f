"""A server of the Model Context Protocol: coding agents propose edits, and the engine decides.

Named so that the protocol's own package, `mcp`, isn't hidden. Needs the extra `mcp`.
"""
