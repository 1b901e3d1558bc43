"""Kinds of stores, one a file. Each makes single attempts; cachecd.sampler.fetch has the patience."""
