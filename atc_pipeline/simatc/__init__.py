"""simatc: a simulator of the `atc` command, for machines without CANN.

It takes the command lines that atc takes, refuses the others with atc's codes, and writes
simulated OM files, which only the simulated device runs. It is used where it is named, never
because atc is absent; everything it prints on stderr, and every OM it writes, says SIMULATION.

`command_line.py` flags; `shapes.py` --input_shape and gears; `onnx_file.py`, `model_checks.py`
what the parser refuses; `node_types.py` shapes; `constants.py` weights; `ge_model.py`,
`compile.py` the OM; `injected.py` failures on demand; `cli.py` what is printed.
"""
