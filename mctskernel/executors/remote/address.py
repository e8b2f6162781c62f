"""Where a server is, and the token that it asks for: nothing is sent where others could read it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

from mctskernel.core.device import DeviceError

TOKEN_VARIABLE = "MCTSKERNEL_TOKEN"  # noqa: S105 - the name of the variable
"""The environment variable that holds the token. It is sent to the server and written nowhere."""

PLAIN_VARIABLE = "MCTSKERNEL_PLAIN_HTTP"
"""Names of hosts, with commas between them, that may be told the token without encryption."""

EXAMPLE = "http://localhost:8765"


@dataclass(frozen=True)
class Address:
    """A server's URL without a slash at its end, and whether it is on this machine."""

    url: str
    is_loopback: bool
    token: str = field(default="", repr=False)


def address_of(url: str, environment: Mapping[str, str] = os.environ) -> Address:
    """The address that a URL names, with the token for it.

    Raises DeviceError for what is no URL of a server, for one on another host that isn't encrypted, unless the
    environment names that host, and without a token.
    """
    plain = plain_url(url)
    host = urlsplit(plain).hostname or ""
    is_loopback = _is_loopback(host)
    allowed = {each.strip().lower() for each in environment.get(PLAIN_VARIABLE, "").split(",")}
    if plain.startswith("http://") and not is_loopback and host not in allowed:
        raise DeviceError(
            f"{plain} isn't encrypted, and whoever sees the token on its way can use it: forward a port with "
            f"`ssh -L 8765:localhost:8765 {host}` and use {EXAMPLE}, or use https://. In a network that you trust, "
            f"allow it by {PLAIN_VARIABLE}={host} in the environment."
        )
    return Address(plain, is_loopback, _token(environment))


def plain_url(url: str) -> str:
    """The URL without a slash at its end. Raises DeviceError for what is no URL of a server, or holds a password."""
    try:
        parts = urlsplit(url)
        well_formed = bool(httpx2.URL(url).host) and (parts.port is None or parts.port > 0)
    except (ValueError, httpx2.InvalidURL):
        well_formed = False
    if not well_formed or parts.scheme not in ("http", "https"):
        raise DeviceError(f"{url!r} is no address of a server, such as {EXAMPLE}.")
    if parts.username is not None or parts.password is not None:
        raise DeviceError(
            f"An address is written down with the run: put the token into {TOKEN_VARIABLE} instead."
        )
    if parts.query or parts.fragment:
        raise DeviceError(
            f"An address ends with its port or a path, as {EXAMPLE} does: leave '?' and '#' out."
        )
    return url.rstrip("/")


def _token(environment: Mapping[str, str]) -> str:
    token = environment.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise DeviceError(
            f"A server asks for a token: set the environment variable {TOKEN_VARIABLE} to the one that "
            "`mctskernel serve` printed, or that its owner made for you."
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise DeviceError(f"{TOKEN_VARIABLE} holds no token: there are characters in it that no token has.")
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
