"""Classes for format `python` that are imported by name: `reader: cachecd.readers.hdf5:Windows`.

windows     cuts arrays into windows, and windows into units of about 4 MiB
hdf5        datasets of HDF5 files
zarr        zarr arrays of version 2 and 3
"""
