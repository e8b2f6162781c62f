"""How the documentation is built: `make docs`, into build/docs."""

project = "mctskernel"
author = "the mctskernel developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
html_theme = "furo"
html_title = "mctskernel"

exclude_patterns = ["examples"]
default_role = "code"
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
nitpicky = False


def setup(app):
    """Show indented blocks of docstrings as code, and the option of each setting."""
    app.connect("autodoc-process-docstring", _mark_code)
    app.connect("autodoc-process-docstring", _list_settings)


def _list_settings(app, what, name, obj, options, lines):  # noqa: ARG001, PLR0917 - Sphinx's signature
    if name == "mctskernel.config.SETTINGS":
        lines += ["", *(f"- `{path}`: `{each.option.flag}`" for path, each in obj.items())]


def _mark_code(app, what, name, obj, options, lines):  # noqa: ARG001, PLR0917 - Sphinx's signature
    for at in range(len(lines) - 1, 0, -1):
        starts_block = lines[at].startswith("    ") and not lines[at - 1].strip()
        follows_prose = next((line for line in reversed(lines[:at]) if line.strip()), "    ")[0] != " "
        if starts_block and follows_prose:
            lines[at:at] = ["::", ""]
