"""Makes batches of files ahead of the training loop, in an order that the seed determines.

`loader` has the public class, which uses the core's native reader. `reading` has the input of a loader, and
divides it among ranks and batches. `sweep` chooses records if an epoch is not one pass of its set.
`options` and `image` check the options. `pipeline` passes batches from the reader through `prepare`, the
framework and the device; `framework` is the interface to a framework. `columns` has the ragged columns of a
batch, and converts arrays to tensors.
"""
