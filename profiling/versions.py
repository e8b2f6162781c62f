"""Versions of installed packages, for fingerprints."""

from __future__ import annotations

import importlib.metadata

import mctskernel

NOT_INSTALLED = "not installed"


def package_versions(*packages: str) -> dict[str, str]:
    """The version of each package, or `not installed`, and mctskernel's own."""
    return {"mctskernel": mctskernel.__version__, **{name: _version(name) for name in packages}}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED
