"""Classes that format `python` imports by name: they read windows of HDF5 and zarr arrays, and MDS sets."""
