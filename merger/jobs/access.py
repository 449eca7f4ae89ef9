"""Who may do what: owners' secrets and signed download links."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from merger.errors import UserError


def new_job_id() -> str:
    """128 random bits that are safe in an address and in a folder name."""
    return secrets.token_urlsafe(16)


def new_owner() -> str:
    """A fresh secret of 256 bits for a visitor who is not signed in."""
    return secrets.token_urlsafe(32)


def owner_hash(owner: str) -> str:
    """What the store keeps of an owner: the SHA-256 of the secret.

    Raises:
        UserError: the secret is empty, so everyone would share it.
    """
    if not owner:
        raise UserError("This page has no owner yet.", hint="Reload the page and try again.")
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()


class DownloadSigner:
    """Signs download links with a key that lives as long as the process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def sign(self, job_id: str, file: str | None, expires: int) -> str:
        """The token that opens ``file`` of a job (None: all of it as one archive) until ``expires``."""
        kind = "archive" if file is None else "file"
        message = "\0".join((job_id, str(expires), kind, file or ""))
        return hmac.new(self._key, message.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def check(self, job_id: str, file: str | None, expires: int, token: str) -> bool:
        """Whether ``token`` is genuine and still valid."""
        genuine = hmac.compare_digest(self.sign(job_id, file, expires).encode(), token.encode("utf-8", "surrogatepass"))
        return genuine and time.time() < expires
