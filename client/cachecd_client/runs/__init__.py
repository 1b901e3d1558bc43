"""The epochs of a run.

`epoch` is a leased file set, `mixture` is an epoch of several datasets, `passes` counts the records that an
epoch's loaders read. `run` has the length and the position of a run, and stores them in the states of
loaders. `agreement` compares the processes of a run, `run_loader` reads a whole run.
"""
