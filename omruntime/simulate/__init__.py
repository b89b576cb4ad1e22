"""Simulation of scheduling: the real scheduler over a virtual clock, without a device."""
