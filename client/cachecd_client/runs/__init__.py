"""Epochs, and the run that they belong to.

`epoch` is a leased file set, `mixture` an epoch of several datasets, `passes` counts what an epoch's
loaders read. `run` says how long a run is and where it is, and stores that in the states of loaders,
`agreement` compares the processes of a run, `run_loader` reads a whole run.
"""
