"""LoadedOm: an OM on the card with its buffers, run once or a few times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from atc_pipeline.probe.acl_calls import Dims
from atc_pipeline.probe.card import Card, Memory
from omruntime.om_file import GEAR_INPUT


class LoadedOm:
    """A loaded model, its datasets and the device buffers behind them.

    Attributes:
        inputs, outputs: In the model's order, as large as its largest gear needs; the gear input
            is among the inputs.
    """

    def __init__(self, card: Card, model_id: int) -> None:
        """Take over a loaded model; `close` unloads it.

        Raises:
            DeviceError: A call failed; the model is unloaded.
        """
        self.card = card
        self.model_id = model_id
        self._exits = ExitStack()
        mdl = card.acl.mdl
        with self._exits:
            self._exits.callback(mdl.unload, model_id)
            self.desc = mdl.create_desc()
            self._exits.callback(mdl.destroy_desc, self.desc)
            card.check("mdl.get_desc", mdl.get_desc(self.desc, model_id))
            num_inputs, num_outputs = mdl.get_num_inputs(self.desc), mdl.get_num_outputs(self.desc)
            self.input_names = [
                mdl.get_input_name_by_index(self.desc, i) for i in range(num_inputs)
            ]
            self.inputs, self._given = self._make_dataset(
                [mdl.get_input_size_by_index(self.desc, i) for i in range(num_inputs)]
            )
            self.outputs, self._made = self._make_dataset(
                [mdl.get_output_size_by_index(self.desc, i) for i in range(num_outputs)]
            )
            self._exits = self._exits.pop_all()

    def _make_dataset(self, sizes: Sequence[int]) -> tuple[list[Memory], int]:
        acl = self.card.acl
        dataset = acl.mdl.create_dataset()
        self._exits.callback(acl.mdl.destroy_dataset, dataset)
        memories = []
        for size in sizes:
            memory = Memory(self.card, size)
            self._exits.callback(memory.free)
            buffer = acl.create_data_buffer(memory.address, size)
            self._exits.callback(acl.destroy_data_buffer, buffer)
            _, status = acl.mdl.add_dataset_buffer(dataset, buffer)
            self.card.check("mdl.add_dataset_buffer", status)
            memories.append(memory)
        return memories, dataset

    def set_gear(self, dims: Sequence[int]) -> None:
        """Choose a gear by all dimensions of all inputs."""
        mdl = self.card.acl.mdl
        index, status = mdl.get_input_index_by_name(self.desc, GEAR_INPUT)
        self.card.check("mdl.get_input_index_by_name", status)
        gear: Dims = {"name": "", "dimCount": len(dims), "dims": list(dims)}
        status = mdl.set_input_dynamic_dims(self.model_id, self._given, index, gear)
        self.card.check("mdl.set_input_dynamic_dims", status)

    def run(self) -> None:
        """Run once and wait; the inputs must have been written."""
        card, acl = self.card, self.card.acl
        status = acl.mdl.execute_async(self.model_id, self._given, self._made, card.stream)
        card.check("mdl.execute_async", status)
        card.check("rt.synchronize_stream", acl.rt.synchronize_stream(card.stream))

    def close(self) -> None:
        """Unload the model and free its buffers."""
        self._exits.close()

    def __enter__(self) -> LoadedOm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()
