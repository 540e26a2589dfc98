import stat
from pathlib import Path

from resources.local.keys import ensure_keys, write_private


def test_secrets_are_made_once_and_kept(tmp_path: Path) -> None:
    first = ensure_keys(tmp_path)
    private = first.signing.read_bytes()
    assert ensure_keys(tmp_path) == first
    assert first.signing.read_bytes() == private


def test_every_home_has_secrets_of_its_own(tmp_path: Path) -> None:
    one, other = ensure_keys(tmp_path / "one"), ensure_keys(tmp_path / "other")
    assert {one.s3_access, one.s3_secret, one.postgres_password}.isdisjoint(
        {other.s3_access, other.s3_secret, other.postgres_password}
    )


def test_only_the_owner_reads_secrets(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    write_private(tmp_path / "keys" / "more.json", "{}")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "keys").iterdir()}
    assert {mode for name, mode in modes.items() if name != keys.verify.name} == {0o600}


def test_secrets_do_not_show_when_printed(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    assert keys.s3_secret not in repr(keys)
    assert keys.postgres_password not in repr(keys)


def test_a_pair_cut_short_is_made_anew(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    keys.signing.unlink()
    public = keys.verify.read_bytes()
    again = ensure_keys(tmp_path)
    assert again.signing.exists()
    assert again.verify.read_bytes() != public
