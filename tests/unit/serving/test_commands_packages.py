"""`trimtab sign` and `trimtab verify` on real packages."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipelines.cli import main
from resources import packages, signing
from resources.local.keys import ensure_keys
from tests.fakes import MemoryStore
from tests.serving_stack import Publisher, config


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path, MemoryStore())


@pytest.fixture
def package(publisher: Publisher) -> Path:
    """Signed."""
    folder = publisher.build("flight", 7)
    assert trimtab("sign", folder, "--key", publisher.private).exit_code == 0
    return folder


def trimtab(*words: object, **environment: str) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], env=environment)


def test_a_signed_package_verifies_as_folder_and_as_tar(publisher: Publisher, package: Path, tmp_path: Path) -> None:
    said = trimtab("verify", package, "--key", publisher.public)
    assert said.exit_code == 0
    files = len(list((package / "warmup").iterdir())) + 3
    assert said.output.startswith(f"flight:7 holds: {files} files as they were signed, mlflow_run_id run")
    tar = tmp_path / "package.tar"
    tar.write_bytes(packages.pack(package))
    assert ", tar " in trimtab("verify", tar, "--key", publisher.public).output


def test_one_changed_byte_is_named_and_the_exit_code_is_1(publisher: Publisher, package: Path) -> None:
    model = package / "7" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    said = trimtab("verify", package, "--key", publisher.public)
    assert (said.exit_code, said.output) == (1, "Error: 7/model.onnx was changed after signing\n")


def test_an_unsigned_package_is_refused(publisher: Publisher) -> None:
    said = trimtab("verify", publisher.build("flight", 7), "--key", publisher.public)
    assert (said.exit_code, said.output) == (1, "Error: model.sig is missing: the package is unsigned\n")


def test_a_missing_version_folder_is_named(publisher: Publisher, package: Path) -> None:
    shutil.rmtree(package / "7")
    said = trimtab("verify", package, "--key", publisher.public)
    assert said.exit_code == 1
    assert "7/model.onnx is missing" in said.output


def test_a_signed_configuration_that_does_not_fit_the_onnx_is_refused_by_its_field(publisher: Publisher) -> None:
    inputs = config("flight", 7)["input"]
    inputs[1] = inputs[1] | {"data_type": "TYPE_FP64"}
    folder = publisher.build("flight", 7, input=inputs, model_warmup=[])
    signing.sign(folder, publisher.private)  # as by a publisher that leaves the checks out
    said = trimtab("verify", folder, "--key", publisher.public)
    assert (said.exit_code, said.output) == (
        1,
        "Error: config.pbtxt: input[1].data_type = 'TYPE_FP64': temp is TYPE_FP32 in the ONNX\n",
    )


def test_two_keys_in_the_environment_are_both_trusted(package: Path, publisher: Publisher, tmp_path: Path) -> None:
    private, public = signing.create_keys(tmp_path / "next")
    both = os.pathsep.join(map(str, (publisher.public, public)))
    assert trimtab("verify", package, TRIMTAB_VERIFY_KEY=both).exit_code == 0
    assert trimtab("sign", package, "--key", private).exit_code == 0
    assert trimtab("verify", package, TRIMTAB_VERIFY_KEY=both).exit_code == 0
    said = trimtab("verify", package, TRIMTAB_VERIFY_KEY=str(publisher.public))
    assert said.output == "Error: model.sig was not made with the key of signing.pub.pem\n"


def test_keys_may_be_text_in_the_environment_two_of_them_while_they_are_rotated(
    publisher: Publisher, tmp_path: Path
) -> None:
    folder = publisher.build("flight", 7)
    assert trimtab("sign", folder, TRIMTAB_SIGNING_KEY=publisher.private.read_text()).exit_code == 0
    _, other = signing.create_keys(tmp_path / "next")
    texts = [key.read_text() for key in (other, publisher.public)]
    assert trimtab("verify", folder, TRIMTAB_VERIFY_KEY=os.pathsep.join(texts)).exit_code == 0
    said = trimtab("verify", folder, TRIMTAB_VERIFY_KEY=texts[0])
    assert said.exit_code == 1
    assert said.output == "Error: model.sig was not made with the key of the text given\n"


def test_a_folder_that_is_no_package_is_not_signed(publisher: Publisher, package: Path) -> None:
    (package / "model.py").write_text("print('code')")
    said = trimtab("sign", package, "--key", publisher.private)
    assert said.exit_code == 1
    assert "model.py does not belong into a package" in said.output


def test_a_configuration_that_does_not_fit_the_onnx_is_not_signed(publisher: Publisher) -> None:
    inputs = config("flight", 7)["input"]
    inputs[1] = inputs[1] | {"data_type": "TYPE_FP64"}
    folder = publisher.build("flight", 7, input=inputs, model_warmup=[])
    said = trimtab("sign", folder, "--key", publisher.private)
    assert (said.exit_code, said.output) == (
        1,
        "Error: config.pbtxt: input[1].data_type = 'TYPE_FP64': temp is TYPE_FP32 in the ONNX\n",
    )
    assert not (folder / "model.sig").exists()


def test_what_is_neither_file_nor_key_of_the_store_is_said(publisher: Publisher) -> None:
    said = trimtab("verify", "nowhere", "--key", publisher.public)
    assert said.output == (
        "Error: nowhere: no such file or folder, and no key of the store, which begins with packages/\n"
    )


def test_public_keys_beside_the_stack_s_own_are_trusted_as_well(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    assert [*keys.trusted] == [keys.verify]
    other = tmp_path / "keys" / "next.pub.pem"
    other.write_bytes(keys.verify.read_bytes())
    assert [*keys.trusted] == [keys.verify, other]
