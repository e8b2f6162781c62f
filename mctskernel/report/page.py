"""A run as one HTML file that needs nothing else: it opens from disk, offline, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

from jinja2 import Environment

from mctskernel.report.frontend import REPORT, compressed_plotly, script, style
from mctskernel.report.parts import SMALLEST, Parts
from mctskernel.report.view import View

# Parts are base64, which can't end their element; scripts are this package's own and plotly's.
_PAGE = Environment(autoescape=True).from_string("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body class="mctskernel-page">
<main class="mctskernel"><p>{{ title }}</p><noscript><p>{{ state }} The rest needs JavaScript.</p></noscript></main>
{% for name, part in parts %}<script type="application/gzip" data-part="{{ name }}">{{ part }}</script>
{% endfor %}<script type="module">{{ script | safe }}</script>
</body>
</html>
""")


def report_page(view: View) -> str:
    """The page of a run. Raises what reading it may raise."""
    parts = Parts(view)
    headline = parts.document.headline
    speedup = f"{headline.speedup:.2f}x {headline.numbers}" if headline.speedup else "no valid kernel yet"
    return _PAGE.render(
        title=f"{headline.task}: {speedup}",
        state=headline.state,
        policy=_policy(script(REPORT)),
        style=style(),
        parts=_encoded(parts),
        script=script(REPORT),
    )


def _encoded(parts: Parts) -> Iterator[tuple[str, str]]:
    for name in parts.names():
        yield name, base64.b64encode(parts.part(name, SMALLEST)).decode()
    yield "plotly", base64.b64encode(compressed_plotly(SMALLEST)).decode()


def _policy(script_text: str) -> str:
    """A Content-Security-Policy that lets this script run, what it loads, and nothing be fetched from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script_text.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' 'strict-dynamic'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
