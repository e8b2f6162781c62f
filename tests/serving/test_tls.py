"""The server under TLS, with a certificate of its own making."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest

from mctskernel.core.device import DeviceError
from mctskernel.executors.http_api import STATUS
from mctskernel.serving.server import Address, Server
from mctskernel.serving.settings import Settings
from mctskernel.serving.tokens import clients_of
from tests.serving.conftest import STUB, TOKENS, serving

SETTINGS = Settings("model", opener=STUB)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_a_client_that_trusts_the_certificate_is_served(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run(["openssl", "req", "-x509", *words, *names], check=True, capture_output=True)

    with serving(SETTINGS, certificate, key) as served:
        headers = {"authorization": f"Bearer {TOKENS['alice']}"}
        trusting = ssl.create_default_context(cafile=certificate)
        answer = httpx2.get(served.url + STATUS, headers=headers, verify=trusting, trust_env=False)
        with pytest.raises(httpx2.ConnectError, match="certificate"):
            httpx2.get(served.url + STATUS, headers=headers, trust_env=False)
        with pytest.raises(httpx2.RemoteProtocolError):
            httpx2.get(served.url.replace("https", "http") + STATUS, headers=headers, trust_env=False)

    assert served.url.startswith("https://127.0.0.1:")
    assert answer.status_code == 200


def test_a_certificate_that_is_none_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("nothing")
    address = Address("127.0.0.1", 0, file, file)
    server = Server(SETTINGS, clients_of(TOKENS), address)

    with pytest.raises(DeviceError, match="can't be used"):
        server.run(address.listen())
