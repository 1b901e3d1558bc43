"""Two questions that this project began with, measured: `python -m tests.bench.situations recordings`, or
`segmentation`. Daemons and frameworks are real; a sleep stands for a GPU where the table says so."""
