"""Runs trained as one tensor program.

`RunStack` in `run_stack` is what a fleet uses. Its parts have a module each: `plan` (what is trained and how), `model`
(the module as functions of stacked tensors), `feed` (batches, learning rates, random keys), `state` (what a checkpoint
holds), `updates` (programs and windows of updates) and `divergence` (which runs are left).
"""
