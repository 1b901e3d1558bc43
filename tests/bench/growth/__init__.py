"""Why growing is right: `python -m tests.bench.growth` measures accuracy over time behind a slow link."""
