"""Packages are data only, the same bytes each time, and refused by the name of what is wrong."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources import packages, signing
from resources.errors import PackageRefused, ServingError
from tests.fakes import MemoryStore
from tests.serving_stack import Publisher, config

FILES = {
    "config.pbtxt": b"config",
    "configs/h100.pbtxt": b"gpu",
    "7/model.onnx": b"onnx",
    "warmup/0123456789abcdef": b"row",
    "manifest.json": json.dumps({"model": "m", "version": 7}).encode(),
    "probe.json": b"{}",
    "model.sig": b"signature",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    packages.write_files(tmp_path / "package", FILES)
    return tmp_path / "package"


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, body in members:
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def member(name: str, **changes: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


def take(body: bytes, folder: Path) -> None:
    packages.unpack(body, folder)
    packages.check_layout(folder, "m", 7)


def test_what_was_packed_unpacks_the_same(folder: Path, tmp_path: Path) -> None:
    packages.unpack(packages.pack(folder), tmp_path / "there")
    there = [path for path in (tmp_path / "there").rglob("*") if path.is_file()]
    found = {path.relative_to(tmp_path / "there").as_posix(): path.read_bytes() for path in there}
    assert found == FILES


def test_the_same_files_are_the_same_bytes_whenever_and_by_whomever_packed(folder: Path, tmp_path: Path) -> None:
    first = packages.pack(folder)
    packages.write_files(tmp_path / "again", dict(reversed(FILES.items())))
    for path in filter(Path.is_file, (tmp_path / "again").rglob("*")):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert packages.pack(tmp_path / "again") == first


@pytest.mark.parametrize(
    "name",
    [
        "../config.pbtxt",
        "/config.pbtxt",
        "7/../8/model.onnx",
        "7/model.py",
        "model.onnx",
        "0/model.onnx",
        "07/model.onnx",
        "configs/../x.pbtxt",
        "configs/a/b.pbtxt",
        "warmup/0123456789abcdef/x",
        "warmup/model.py",
        ".gitignore",
        "7/__pycache__/model.pyc",
        "config.pbtxt\n",
        "",
    ],
)
def test_a_name_that_is_not_data_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    body = tar_of((member("config.pbtxt"), b"config"), (member(name), b"evil"))
    with pytest.raises(PackageRefused, match="does not belong into a package"):
        packages.unpack(body, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@given(st.text(max_size=30))
def test_no_name_beyond_the_list_passes(name: str) -> None:
    if name in FILES or packages.NAMES.fullmatch(name):
        return
    with pytest.raises(PackageRefused):
        packages.check_names([name])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_only_plain_files_are_unpacked(kind: bytes, tmp_path: Path) -> None:
    body = tar_of((member("config.pbtxt", type=kind, linkname="/etc/passwd"), b""))
    with pytest.raises(PackageRefused, match=r"config\.pbtxt is no plain file"):
        packages.unpack(body, tmp_path)


def test_a_link_is_never_packed(folder: Path) -> None:
    (folder / "probe.json").unlink()
    (folder / "probe.json").symlink_to("/etc/passwd")
    with pytest.raises(PackageRefused, match=r"probe\.json is a link"):
        packages.pack(folder)


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    body = tar_of((member("probe.json"), b"good"), (member("probe.json"), b"evil"))
    with pytest.raises(PackageRefused, match=r"probe\.json is there twice"):
        packages.unpack(body, tmp_path)


def test_a_package_beyond_the_bound_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_BYTES", 20)
    with pytest.raises(PackageRefused, match="more than 512 files or 20 bytes"):
        packages.unpack(packages.pack(folder), tmp_path / "there")


@pytest.mark.parametrize("body", [b"", b"no tar at all", b"\x1f\x8b\x08" + bytes(100)])
def test_bytes_that_are_no_tar_are_refused(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(PackageRefused):
        take(body, tmp_path)


def test_a_cut_tar_is_refused(folder: Path, tmp_path: Path) -> None:
    cut = packages.pack(folder)[:700]
    with pytest.raises(PackageRefused):
        take(cut, tmp_path)


@pytest.mark.parametrize("name", ["config.pbtxt", "7/model.onnx", "manifest.json", "probe.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(PackageRefused, match=f"{name} is missing"):
        packages.check_layout(folder, "m", 7)


def test_a_second_version_is_refused(folder: Path) -> None:
    packages.write_files(folder, {"8/model.onnx": b"onnx"})
    with pytest.raises(PackageRefused, match="7/, 8/: a package holds exactly one version"):
        packages.check_layout(folder, "m", 7)


@pytest.mark.parametrize("manifest", [b"{}", b"[]", b"none", b'{"model": "m", "version": "x"}'])
def test_a_manifest_without_names_is_refused(folder: Path, manifest: bytes) -> None:
    (folder / "manifest.json").write_bytes(manifest)
    with pytest.raises(PackageRefused, match=r"manifest\.json does not name"):
        packages.check_layout(folder, "m", 7)


def test_publishing_twice_is_one_object_under_its_digest(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher(tmp_path, store)
    folder = publisher.build("m", 7)
    signing.sign(folder, publisher.private)
    first = packages.publish(store, "m", 7, folder)
    assert packages.publish(store, "m", 7, folder) == first
    assert store.keys("packages/") == [f"packages/m/7/{first.digest}.tar"]


def test_an_unsigned_package_is_not_published(folder: Path) -> None:
    (folder / "model.sig").unlink()
    with pytest.raises(PackageRefused, match="sign the package"):
        packages.publish(MemoryStore(), "m", 7, folder)


def test_a_model_name_that_would_leave_its_folder_is_not_published(folder: Path) -> None:
    with pytest.raises(ServingError, match="letters, digits"):
        packages.publish(MemoryStore(), "../m", 7, folder)


def test_a_configuration_becomes_the_text_that_triton_reads() -> None:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    text = packages.render_config(config("flight", 7))
    parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert [i.name for i in parsed.input] == ["carrier", "temp", "hour"]
    assert list(parsed.version_policy.specific.versions) == [7]
    assert 'backend: "onnxruntime"' in text
    assert "runtime" not in text.replace("onnxruntime", "")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dynamic_batching": {"max_queue_delay_microsecond": 1}}, "max_queue_delay_microsecond"),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"instance_group": [{"kind": "KIND_TPU"}]}, "KIND_TPU"),
    ],
)
def test_a_field_that_triton_does_not_know_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ServingError, match=field):
        packages.render_config(config("flight", 7) | change)
