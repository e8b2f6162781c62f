"""How the documentation is built: `make docs`, into build/docs."""

project = "mctskernel"
author = "the mctskernel developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
html_theme = "furo"
html_title = "mctskernel"

exclude_patterns = ["examples", "results/families_h100"]
default_role = "code"
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
nitpicky = False
