"""TLS certificates of the clients: a folder with the file names of a Kubernetes TLS secret.

`ca.crt` holds the authorities that sign servers; without it the client trusts the system's. `tls.crt` and
`tls.key` are the client's own, for servers that require a client certificate. :func:`read` checks the folder;
each transport creates its own credentials from it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from slipway_serving.protocol.errors import InvalidRequest, raise_all

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"


@dataclass(frozen=True)
class Tls:
    """Certificates in PEM format.

    Attributes:
        folder: Folder of the certificates.
        authority: Authorities that sign servers; None for the system's.
        certificate: Certificate chain of the client; None shows none.
        key: Private key of the certificate.
    """

    folder: Path
    authority: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)

    def context(self) -> ssl.SSLContext:
        """Return the SSL context for HTTP connections."""
        tls = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
        if self.certificate is not None:
            tls.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
        return tls


def read(folder: Path) -> Tls:
    """Read a folder of certificates.

    Raises:
        InvalidRequest: The folder holds no certificate, a file cannot be read, or certificate and key are
            not a pair.
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
                f"folder {folder} must contain {AUTHORITY}, or {CERTIFICATE} with {KEY}, or all three, got"
                f" {', '.join(found) or 'none of them'}"
            )
    raise_all("tls", problems)
    tls = Tls(folder, *(found.get(name) for name in names))
    try:
        tls.context()
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequest(
            f"tls: folder {folder} must contain PEM certificates and the matching key, got {error}"
        ) from None
    return tls


def load_tls(folder: Path | None, *, secured: bool) -> Tls | None:
    """Read the certificates of a connection and check that its URL uses TLS.

    Args:
        folder: Folder of certificates; None for the system's authorities and no client certificate.
        secured: True if the server's URL uses TLS.

    Raises:
        InvalidRequest: The folder is refused by :func:`read`, or certificates are given without TLS.
    """
    if folder is None:
        return None
    if not secured:
        raise InvalidRequest(
            f"tls: certificates must be given only with a TLS url, got {folder}; try the scheme grpcs:// or https://"
        )
    return read(folder)
