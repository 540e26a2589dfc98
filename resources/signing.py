"""Signatures of packages: OpenSSF model-signing with elliptic keys, offline.

Whoever holds the private key may publish; an agent holds public keys only, two of them while keys are rotated.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from resources.errors import PackageRefused, ServingError

SIGNATURE = "model.sig"
PEM = "-----BEGIN "
_MEMORY = Path("/proc/self/fd")


def create_keys(folder: Path) -> tuple[Path, Path]:
    """A new pair on P-256: `signing.pem` (0600) and `signing.pub.pem`. An existing pair is never overwritten."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = folder / "signing.pem", folder / "signing.pub.pem"
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    body = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ServingError(f"{private} exists: choose another folder for the new pair") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def key_file(given: str) -> Path:
    """A key as a setting names it: the path of a file, or the key itself as PEM text, as secret stores hand it over.

    Text never touches a disk: its file lies in this process's memory and ends with it.
    """
    return _in_memory(given) if given.lstrip().startswith(PEM) else Path(given)


@lru_cache
def _in_memory(pem: str) -> Path:
    descriptor = os.memfd_create("trimtab-key")
    with os.fdopen(os.dup(descriptor), "w") as file:
        file.write(pem)
    return _MEMORY / str(descriptor)


def sign(folder: Path, private_key: Path) -> None:
    """Write `folder/model.sig` over every other file of the folder."""
    from model_signing import signing

    try:
        config = signing.Config().set_hashing_config(_hashing()).use_elliptic_key_signer(private_key=private_key)
        config.sign(folder, folder / SIGNATURE)
    except (OSError, ValueError) as error:
        raise ServingError(f"{folder} can't be signed with {private_key}: {error}") from error


def verify(folder: Path, public_keys: Sequence[Path]) -> None:
    """Every file is as it was signed with one of the keys, none missing, none added; else `PackageRefused`."""
    if not (folder / SIGNATURE).is_file():
        raise PackageRefused(f"{SIGNATURE} is missing: the package is unsigned")
    if not public_keys:
        raise PackageRefused(f"{SIGNATURE} can't be checked: no public key is given")
    refusals = []
    for key in public_keys:
        reason = _refusal(folder, key)
        if reason is None:
            return
        refusals.append(reason)
    # A key that fits the signature names the file; the others only say that they did not sign.
    raise PackageRefused(next((reason for reason in refusals if not reason.startswith(SIGNATURE)), refusals[0]))


def _refusal(folder: Path, public_key: Path) -> str | None:
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    try:
        config = verifying.Config().set_hashing_config(_hashing())
        config.use_elliptic_key_verifier(public_key=public_key).verify(folder, folder / SIGNATURE)
    except InvalidSignature:
        return f"{SIGNATURE} is forged: it does not fit what it says was signed"
    except Exception as error:  # the library raises whatever its parsers raise on a file that is not a signature
        text = str(error)
        if text.startswith("Signature mismatch"):
            return _named_files(text)
        if text.startswith("Key mismatch"):
            return f"{SIGNATURE} was not made with the key of {_name(public_key)}"
        return f"{SIGNATURE} can't be checked with {_name(public_key)}: {type(error).__name__}: {text}"
    return None


def _name(key: Path) -> str:
    return "the text given" if key.parent == _MEMORY else key.name


def _named_files(mismatch: str) -> str:
    mismatch = mismatch.replace("\\", "")  # the library prints a list of messages, so their quotes are escaped
    parts = [f"{name} was changed after signing" for name in re.findall(r"Hash mismatch for '([^']+)'", mismatch)]
    for word, pattern in (("missing", "Missing files"), ("not signed", "Extra files found")):
        for names in re.findall(pattern + r" in model '[^']*': ([^'\"]+)", mismatch):
            parts += [f"{name} is {word}" for name in names.split(", ")]
    return ", ".join(parts) or mismatch


def _hashing() -> Any:
    """Every file counts, those that git would hide as well; only the signature itself is left out."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
