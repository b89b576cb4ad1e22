"""Doctor: what is wrong with a machine that is to run Ascend cards, and how to mend it.

Reads the machine, changes nothing, opens no device and imports no vendor library: what only a
loaded library can tell is asked of a child process. Standard library alone, so that it runs
where nothing else does.
"""
