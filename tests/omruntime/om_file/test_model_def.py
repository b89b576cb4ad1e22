from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.errors import BundleError
from omruntime.om_file import PartitionType, read_om
from omruntime.om_file.attributes import (
    AttributeDictionary,
    AttributeReader,
    Attributes,
    AttrValue,
    Opaque,
    pack_attributes,
)
from omruntime.om_file.model_def import ModelDef, Op, OpTensor, read_model_def
from omruntime.om_file.model_pack import pack_graph, pack_model, pack_op
from omruntime.om_file.wire import FieldBudget, Message, bytes_field, varint_field
from tests.omruntime.om_file.samples import DYNAMIC, OLD, STATIC, sample

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
int64 = st.integers(-(2**63), 2**63 - 1)
values = st.one_of(
    st.booleans(),
    int64,
    st.floats(width=32, allow_nan=False),
    texts,
    st.lists(int64, max_size=3).map(tuple),
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.lists(st.booleans(), min_size=1, max_size=3).map(tuple),
)


def unpack(data: bytes, dictionary: AttributeDictionary | None = None) -> Attributes:
    message = Message(memoryview(data), 0, "test", FieldBudget(10_000))
    reader = AttributeReader(dictionary or AttributeDictionary())
    for field in message.fields():
        reader.read(message.nested(field, "entry"))
    return reader.attributes


@given(st.dictionaries(texts.filter(lambda t: not t.startswith("\0")), values, max_size=5))
def test_attributes_come_back(attributes: dict[str, AttrValue]) -> None:
    assert unpack(pack_attributes(11, attributes)) == attributes


OP = Op(
    "case",
    "Case",
    ("index:0", "ids:0"),
    {"batch_num": 2, "_pred_value_0": (1, 4)},
    (OpTensor(7, (1, -1), "ND", 8),),
    (OpTensor(2, (), "ND", 2), OpTensor(1, (3,), "NCHW", 12)),
    ("index",),
    (0, 1),
)


def make_model(ops: list[Op], attributes: Attributes) -> ModelDef:
    graph = pack_graph("main", map(pack_op, ops))
    return read_model_def(memoryview(b"".join(pack_model("m", 3, [graph], attributes))))


def test_a_model_comes_back() -> None:
    model = make_model([OP, Op("x", "Data")], {"memory_size": 5, "soc_version": "Ascend310P3"})
    assert (model.name, model.version) == ("m", 3)
    assert (model.integer("memory_size"), model.text("soc_version")) == (5, "Ascend310P3")
    (graph,) = model.graphs
    assert graph.name == "main"
    (kind, message), (other, _) = graph.op_messages()
    assert (kind, other) == ("Case", "Data")
    assert graph.decode(message) == OP


def test_an_absent_or_other_attribute_is_none_of_its_kind() -> None:
    model = make_model([], {"memory_size": "many"})
    assert model.integer("memory_size") is None
    assert model.text("absent") == ""
    assert model.items("memory_size") == ()


def encoded(index: int) -> str:
    return "\0" + chr(index % 127 + 1) + chr(index // 127 + 1)


def test_encoded_keys_and_values_are_looked_up() -> None:
    names = tuple(f"name{i}" for i in range(300))
    uses = tuple(i % 2 == 0 for i in range(300))
    dictionary = AttributeDictionary(names, ("zero", "one"), uses)
    data = pack_attributes(
        10, {encoded(0): 1, encoded(131): 1, encoded(298): (0, 1), "literal": 1, encoded(400): 7}
    )
    assert unpack(data, dictionary) == {
        "name0": "one",
        "name131": 1,
        "name298": ("zero", "one"),
        "literal": 1,
        "<attribute 400 of no dictionary>": 7,
    }


def test_a_model_without_compression_has_no_dictionary() -> None:
    assert make_model([], {"attr_name_enum": ("a",)}).dictionary == AttributeDictionary()


DICTIONARY: Attributes = {
    "om_compress_version": 1,
    "attr_name_enum": ("first", "second"),
    "attr_value_enum": ("word",),
    "attrs_use_string_value": (False, True),
}


def test_later_blocks_use_the_first_dictionary() -> None:
    first = make_model([], DICTIONARY).dictionary
    leftover = DICTIONARY | {"attr_name_enum": ("left", "over")}
    assert AttributeDictionary.of_model(leftover, first) is first


def test_names_that_are_encoded_again_are_looked_up_twice() -> None:
    first = make_model([], DICTIONARY).dictionary
    again: Attributes = {
        "om_compress_version": 1,
        "attr_name_enum": (encoded(1),),
        "attrs_use_string_value": (False,),
    }
    dictionary = AttributeDictionary.of_model(again, first)
    assert unpack(pack_attributes(10, {encoded(0): 0}), dictionary) == {"second": "word"}


def test_what_is_not_decoded_shows_its_size() -> None:
    entry = bytes_field(1, "tasks") + bytes_field(2, bytes_field(7, bytes(9)))
    long = bytes_field(1, "long") + bytes_field(2, bytes_field(2, bytes((1 << 20) + 1)))
    found = unpack(bytes_field(11, entry) + bytes_field(11, long))
    assert found == {"tasks": Opaque("bytes", 9), "long": Opaque("text", (1 << 20) + 1)}


def test_a_list_beyond_the_bound_is_refused() -> None:
    numbers = bytes_field(3, b"\1" * 100_001)
    data = bytes_field(11, bytes_field(1, "k") + bytes_field(2, bytes_field(1, numbers)))
    reader, message = AttributeReader(), Message(memoryview(data), 0, "test", FieldBudget(10**6))
    (field,) = message.fields()
    with pytest.raises(BundleError, match="more than 100000 items"):
        reader.read(message.nested(field, "entry"))


def test_lists_of_lists_are_read() -> None:
    lists = bytes_field(1, varint_field(1, 5) + varint_field(1, 6)) + bytes_field(1, b"")
    data = bytes_field(11, bytes_field(1, "k") + bytes_field(2, bytes_field(14, lists)))
    assert unpack(data) == {"k": ((5, 6), ())}


def read_blocks(name: str) -> list[ModelDef]:
    models: list[ModelDef] = []
    for block in read_om(sample(name)).blocks:
        data = block.partitions[PartitionType.MODEL_DEF]
        offset = block.partition_offset(PartitionType.MODEL_DEF)
        models.append(read_model_def(data, offset, models[0].dictionary if models else None))
    return models


def ops_of(model: ModelDef, graph_name: str) -> list[Op]:
    (graph,) = (g for g in model.graphs if g.name == graph_name)
    return [graph.decode(message) for _, message in graph.op_messages()]


def test_the_real_old_model_is_what_its_notes_say() -> None:
    (model,) = read_blocks(OLD)
    assert (model.name, model.version) == ("a3c_pong_model", 2)
    assert model.attributes["memory_size"] == 90_624
    assert model.attributes["weight_size"] == 320_000
    assert model.attributes["atc_version"] == "1.75.22.0.220"
    # An exact copy of the TASK_INFO partition in old files.
    assert model.attributes["tasks"] == Opaque("bytes", 5_644)


def test_the_real_sub_models_are_the_graphs_of_the_root() -> None:
    """Block 1 decodes to what block 0 says of the same graph, attribute by attribute."""
    root, first, second = read_blocks(DYNAMIC)
    assert [g.name for g in root.graphs] == ["root", "sub_1", "sub_2"]
    for model, name in ((first, "sub_1"), (second, "sub_2")):
        for ours, roots in zip(ops_of(model, name), ops_of(root, name), strict=True):
            assert ours.attributes.keys() >= roots.attributes.keys() - {"OwnerGraphIsUnknown"}
            assert ours.attributes.get("index") == roots.attributes.get("index")
    add = next(op for op in ops_of(first, "sub_1") if op.type == "Add")
    assert add.attributes["_ge_attr_op_kernel_lib_name"] == "aicpu_ascend_kernel"


def test_the_real_types_count_as_the_protobuf_does() -> None:
    (model,) = read_blocks(STATIC)
    data = next(op for op in ops_of(model, "test_graph_cache") if op.type == "Data")
    assert (data.input_descs[0].dtype, data.input_descs[0].dtype_name) == (7, "int32")


def test_a_long_name_is_not_copied_for_each_attribute() -> None:
    """A file of megabytes could ask for the copies of hundreds of gigabytes."""
    name = "x" * 1000
    dictionary = AttributeDictionary((name,), outer=AttributeDictionary(("a", "b")))
    assert dictionary.decode(b"\0\1", 1)[0] is name
