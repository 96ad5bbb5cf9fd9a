"""The schemas are well-formed, break nobody, and the generated code is theirs."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tardis_machine import bronze
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2
from tardis_machine.generated.lakehouse.silver.v1 import records_pb2
from tardis_machine.messages import PAYLOAD_CASES

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "schemas"
GENERATED = ROOT / "src" / "tardis_machine" / "generated"
BRONZE = "proto/lakehouse/bronze/v1/normalized_event.proto"
BIN = Path(sys.executable).parent


def buf(*arguments: str, cwd: Path = SCHEMAS) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [BIN / "buf", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SCHEMAS, tmp_path / "schemas"))


def edit(copy: Path, old: str, new: str) -> None:
    proto = copy / BRONZE
    text = proto.read_text()
    assert text.count(old) == 1
    proto.write_text(text.replace(old, new))


def test_schemas_are_formatted() -> None:
    result = buf("format", "--diff", "--exit-code")
    assert result.returncode == 0, f"run `make schemas`\n{result.stdout}"


def test_schemas_pass_lint() -> None:
    result = buf("lint")
    assert result.returncode == 0, result.stdout


def test_nothing_released_is_broken() -> None:
    result = buf("breaking", "--against", "released.binpb")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bool trade_id_is_number = 21;", "bool trade_id_is_number = 22;"),
        ("bool trade_id_is_number = 21;", ""),
        ("bool trade_id_is_number = 21;", "string trade_id_is_number = 21;"),
        ("OPTION_TYPE_CALL = 2;", "OPTION_TYPE_CALL = 3;"),
    ],
)
def test_a_change_that_breaks_consumers_is_found(copy: Path, old: str, new: str) -> None:
    edit(copy, old, new)
    assert buf("breaking", "--against", "released.binpb", cwd=copy).returncode != 0


def test_an_addition_breaks_nobody(copy: Path) -> None:
    edit(copy, "bool trade_id_is_number = 21;", "bool trade_id_is_number = 21; bool more = 22;")
    assert buf("breaking", "--against", "released.binpb", cwd=copy).returncode == 0


def generate(copy: Path) -> dict[str, bytes]:
    result = buf("generate", cwd=copy)
    assert result.returncode == 0, result.stderr
    out = copy.parent / "src" / "tardis_machine" / "generated"
    descriptors = out / "lakehouse" / "descriptors.binpb"
    buf("build", "--as-file-descriptor-set", "--output", str(descriptors), cwd=copy)
    return contents(out)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_generated_code_is_fresh(copy: Path) -> None:
    assert generate(copy) == contents(GENERATED), "run `make schemas`"


def test_a_forgotten_generation_is_found(copy: Path) -> None:
    edit(copy, "bool trade_id_is_number = 21;", "bool trade_id_is_number = 21; bool more = 22;")
    assert generate(copy) != contents(GENERATED)


def test_the_descriptor_set_stands_alone() -> None:
    """Spark and registries get these bytes and nothing else: imports must be in them."""
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(bronze.descriptor_set())
    names = [file.name for file in descriptors.file]
    assert set(names) >= {dependency for file in descriptors.file for dependency in file.dependency}
    assert normalized_event_pb2.DESCRIPTOR.name in names
    assert records_pb2.DESCRIPTOR.name in names


def test_silver_has_a_record_for_every_payload() -> None:
    records = {name for name in records_pb2.DESCRIPTOR.message_types_by_name if "Record" in name}
    cases = {f"{case[0].upper()}{case[1:]}Record" for case in PAYLOAD_CASES}
    assert records == {*cases, "RecordKey"}


def test_every_payload_has_its_case() -> None:
    payload = normalized_event_pb2.NormalizedEvent.DESCRIPTOR.oneofs_by_name["payload"]
    assert {field.camelcase_name for field in payload.fields} == set(PAYLOAD_CASES)


def test_the_runtime_required_is_the_one_generated_for() -> None:
    generated = Path(normalized_event_pb2.__file__).read_text()
    version = generated.split("# Protobuf Python Version: ")[1].split("\n")[0]
    assert f'"protobuf>={version}"' in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_carries_the_generated_code(tmp_path: Path) -> None:
    subprocess.run(
        [BIN / "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"tardis_machine/generated/{path}" for path in contents(GENERATED)} <= names
