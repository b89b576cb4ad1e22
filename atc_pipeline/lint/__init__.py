"""Whether ATC will accept an ONNX graph, and where it would run slowly, before ATC is started.

`lint_model` in `check.py` is the entry. A rule is data and one small function, in the file of its
kind (`rules_*.py`); what it looks at is `LintGraph`; what it finds becomes a `LintReport`.
"""
