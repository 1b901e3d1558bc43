"""Classes that format `python` imports by name. They read windows of HDF5 and zarr arrays."""
