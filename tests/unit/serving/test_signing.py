"""Signatures say which file is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from resources import signing
from resources.errors import PackageRefused, ServingError


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return signing.create_keys(tmp_path / "keys")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "7").mkdir(parents=True)
    (folder / "7" / "model.onnx").write_bytes(b"weights")
    (folder / "config.pbtxt").write_bytes(b"backend")
    return folder


def test_what_was_signed_verifies(package: Path, keys: tuple[Path, Path]) -> None:
    signing.sign(package, keys[0])
    signing.verify(package, [keys[1]])


def test_signing_again_replaces_the_signature(package: Path, keys: tuple[Path, Path]) -> None:
    signing.sign(package, keys[0])
    (package / "config.pbtxt").write_bytes(b"another backend")
    signing.sign(package, keys[0])
    signing.verify(package, [keys[1]])


def change(folder: Path) -> None:
    (folder / "7" / "model.onnx").write_bytes(b"Weights")


def remove(folder: Path) -> None:
    (folder / "7" / "model.onnx").unlink()


def add(folder: Path) -> None:
    (folder / "7" / "model.py").write_text("print('unsigned code')")


def add_hidden(folder: Path) -> None:
    (folder / ".gitignore").write_text("what git hides, Triton may still read")


def link(folder: Path) -> None:
    (folder / "7" / "link").symlink_to("/etc/passwd")


def unsign(folder: Path) -> None:
    (folder / "model.sig").unlink()


def garble(folder: Path) -> None:
    (folder / "model.sig").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (change, r"7/model\.onnx was changed after signing"),
        (remove, r"7/model\.onnx is missing"),
        (add, r"7/model\.py is not signed"),
        (add_hidden, r"\.gitignore is not signed"),
        (link, "link"),
        (unsign, r"model\.sig is missing: the package is unsigned"),
        (garble, r"model\.sig can't be checked"),
    ],
)
def test_damage_is_refused_by_the_name_of_the_file(
    package: Path, keys: tuple[Path, Path], damage: Callable[[Path], None], told: str
) -> None:
    signing.sign(package, keys[0])
    damage(package)
    with pytest.raises(PackageRefused, match=told):
        signing.verify(package, [keys[1]])


def test_either_of_two_keys_holds_while_keys_are_rotated(
    package: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = signing.create_keys(tmp_path / "next")
    for signer in (keys[0], private):
        signing.sign(package, signer)
        signing.verify(package, [keys[1], public])
        signing.verify(package, [public, keys[1]])


def test_with_two_keys_the_changed_file_is_still_named(package: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    _, other = signing.create_keys(tmp_path / "next")
    signing.sign(package, keys[0])
    change(package)
    for order in ([keys[1], other], [other, keys[1]]):
        with pytest.raises(PackageRefused, match=r"7/model\.onnx was changed"):
            signing.verify(package, order)


def test_a_strangers_signature_is_refused(package: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, _ = signing.create_keys(tmp_path / "stranger")
    signing.sign(package, private)
    with pytest.raises(PackageRefused, match=r"was not made with the key of signing\.pub\.pem"):
        signing.verify(package, [keys[1]])


def test_no_key_is_no_pass(package: Path, keys: tuple[Path, Path]) -> None:
    signing.sign(package, keys[0])
    with pytest.raises(PackageRefused, match="no public key"):
        signing.verify(package, [])


def test_a_missing_public_key_is_named(package: Path, keys: tuple[Path, Path]) -> None:
    signing.sign(package, keys[0])
    with pytest.raises(PackageRefused, match=r"nowhere\.pem"):
        signing.verify(package, [Path("nowhere.pem")])


def test_the_private_key_is_for_its_owner_alone(keys: tuple[Path, Path]) -> None:
    assert keys[0].stat().st_mode & 0o777 == 0o600


def test_a_pair_is_never_overwritten(keys: tuple[Path, Path]) -> None:
    before = keys[0].read_bytes()
    with pytest.raises(ServingError, match=r"signing\.pem exists"):
        signing.create_keys(keys[0].parent)
    assert keys[0].read_bytes() == before


def test_a_key_that_is_none_can_not_sign(package: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no key")
    with pytest.raises(ServingError, match=r"can't be signed with .*no\.pem"):
        signing.sign(package, tmp_path / "no.pem")
