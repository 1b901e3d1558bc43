"""Classes for format `python` to import by name: windows of HDF5 (hdf5.py) and zarr (zarr.py) arrays."""
