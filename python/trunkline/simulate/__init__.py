"""A simulated fleet: what a routing policy would do with some traffic on some workers.

`spec` describes a run and its figures and runs it, `sources` names traffic, `runs` runs policies and seeds beside
each other, `request` is what a user may ask for, `report` prints, `plot` draws, `fit` reads a worker's speed off its
metrics, `scale` changes the fleet under way, `cli` is the command line. The router in it is the real one; the workers
are a model (`rust/sim/src/des`).
"""
