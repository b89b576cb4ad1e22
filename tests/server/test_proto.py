"""proto/ and server/pb/: in step, and in the house style."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

from server.pb import control_pb2, inference_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto/omserve/v1"
FILES: tuple[FileDescriptor, ...] = (inference_pb2.DESCRIPTOR, control_pb2.DESCRIPTOR)


def test_the_committed_stubs_are_what_proto_gives(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    protos = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iserver/pb=proto/omserve/v1"]
    outputs = ["--python_out=.", "--pyi_out=.", "--grpc_python_out=."]
    subprocess.run([*command, *outputs, *protos], cwd=tmp_path, check=True, timeout=60)
    fresh = {p.name: p.read_text() for p in (tmp_path / "server/pb").iterdir()}
    committed = {
        p.name: p.read_text() for p in (ROOT / "server/pb").glob("*.py*") if p.name != "__init__.py"
    }
    assert fresh == committed, "run `make proto`"


@pytest.mark.parametrize("path", sorted(PROTO.glob("*.proto")), ids=lambda p: p.name)
def test_every_message_field_rpc_and_value_has_a_comment(path: Path) -> None:
    lines = path.read_text().splitlines()
    declared = re.compile(r"\s*(rpc |service |enum |optional |repeated |map<|\w[\w.]* \w+ = \d+;)")
    for number, line in enumerate(lines):
        if declared.match(line) and not line.startswith(("syntax", "package")):
            assert lines[number - 1].strip().startswith("//"), f"{path.name}:{number + 1}: {line}"


def test_names_follow_the_style() -> None:
    for file in FILES:
        assert file.package == "omserve.v1"
        for name, service in file.services_by_name.items():
            assert name.endswith("Service")
            for method in service.methods:
                assert method.input_type.name == f"{method.name}Request"
                assert method.output_type.name == f"{method.name}Response"
        for name, enum in file.enum_types_by_name.items():
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
            assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
            assert all(value.name.startswith(f"{prefix}_") for value in enum.values)


def test_numbers_and_booleans_know_whether_they_are_set() -> None:
    text = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_ENUM)
    for file in FILES:
        for message in file.message_types_by_name.values():
            for field in message.fields:
                if not field.is_repeated and field.type not in text:
                    assert field.has_presence, f"{message.name}.{field.name} is not optional"
