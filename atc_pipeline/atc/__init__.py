"""Driving the ATC compiler: command lines, runs, failures, and many runs at once.

What comes out of it lies in a folder for each program; the bundle is made of them elsewhere.
"""
