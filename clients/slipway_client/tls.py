"""What connections over TLS are made with: a folder of certificates, named as a Kubernetes secret has them.

`ca.crt` signs servers, without it those count whom the system trusts; `tls.crt` and `tls.key` are the
client's own, for servers that ask for one. :func:`read` checks it, each transport makes its own credentials.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from slipway_serving.errors import InvalidRequest, raise_all

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"


@dataclass(frozen=True)
class Tls:
    """Certificates in PEM.

    Attributes:
        folder: where they lie.
        authority: those that sign servers; None for the system's.
        certificate: the client's own, with those between it and its authority; None shows none.
        key: the certificate's private key.
    """

    folder: Path
    authority: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)

    def context(self) -> ssl.SSLContext:
        """Return what HTTP is secured with."""
        made = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
        if self.certificate is not None:
            made.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
        return made


def read(folder: Path) -> Tls:
    """Read a folder of certificates.

    Raises:
        InvalidRequest: it holds none, a file cannot be read, or certificate and key are not a pair.
    """
    names = (AUTHORITY, CERTIFICATE, KEY)
    problems, found = [], {}
    try:
        found = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    except OSError as error:
        problems.append(f"{error.filename} must be a readable file, got {error.strerror}")
    else:
        if not found or (CERTIFICATE in found) != (KEY in found):
            problems.append(
                f"{folder} must hold {AUTHORITY}, or {CERTIFICATE} with {KEY}, or all, got"
                f" {', '.join(found) or 'none of them'}"
            )
    raise_all("tls", problems)
    made = Tls(folder, *(found.get(name) for name in names))
    try:
        made.context()
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequest(
            f"tls: {folder} must hold certificates in PEM and their own key, got {error}"
        ) from None
    return made


def checked(folder: Path | None, *, secured: bool) -> Tls | None:
    """Return what a connection is secured with.

    Args:
        folder: of certificates; None for the system's authorities and no certificate of one's own.
        secured: whether the server's URL asks for TLS.

    Raises:
        InvalidRequest: as :func:`read`; or certificates are given for a connection without TLS.
    """
    if folder is None:
        return None
    if not secured:
        raise InvalidRequest(
            f"tls: certificates must be given with a URL of TLS only, got {folder}; try grpcs:// or https://"
        )
    return read(folder)
