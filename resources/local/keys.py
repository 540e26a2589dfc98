"""Secrets of one stack, made at its first start: files of the home's `keys/` that only their owner reads."""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from resources.signing import create_keys


@dataclass(frozen=True, slots=True)
class Keys:
    """What the parts authenticate with. The signing pair as files, the rest as values."""

    s3_access: str = field(repr=False)
    s3_secret: str = field(repr=False)
    postgres_password: str = field(repr=False)
    signing: Path
    verify: Path
    triton_control: Path = Path()
    """File with the key of Triton's model control; agents are told the file, never the key."""

    @property
    def trusted(self) -> tuple[Path, ...]:
        """Public keys that agents accept: the pair's own and, during a rotation, any `*.pub.pem` beside it."""
        beside = sorted(file for file in self.verify.parent.glob("*.pub.pem") if file != self.verify)
        return (self.verify, *beside)


def ensure_keys(home: Path) -> Keys:
    """Read the home's secrets, making those that are missing."""
    folder = home / "keys"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Keys(
        s3_access=_secret(folder / "s3-access", 10),
        s3_secret=_secret(folder / "s3-secret", 20),
        postgres_password=_secret(folder / "postgres", 16),
        triton_control=_secret_file(folder / "triton-control", 20),
        **_signing_pair(folder),
    )


def write_private(file: Path, body: str) -> None:
    """Replace the file by one that only its owner reads, also while it is written."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write(body)
    partial.replace(file)


def _secret(file: Path, size: int) -> str:
    return _secret_file(file, size).read_text()


def _secret_file(file: Path, size: int) -> Path:
    if not file.exists():
        write_private(file, secrets.token_hex(size))
    return file


def _signing_pair(folder: Path) -> dict[str, Path]:
    private, public = folder / "signing.pem", folder / "signing.pub.pem"
    if not private.exists():
        # Made aside: a pair of which only half was written would refuse every package.
        aside = folder / f"pair-{secrets.token_hex(4)}"
        made_private, made_public = create_keys(aside)
        made_public.replace(public)
        made_private.replace(private)
        aside.rmdir()
    return {"signing": private, "verify": public}
