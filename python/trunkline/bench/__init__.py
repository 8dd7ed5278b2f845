"""Measurements behind `trunkline bench`. They print figures of this machine and the floor that it allows.

`workload` makes prompts, `timing` takes times, `floors` measures the machine, `core` the router, `peers` others beside
it; `facts` says on what machine, `report` keeps the figures and prints them, `command` runs it all.
"""
