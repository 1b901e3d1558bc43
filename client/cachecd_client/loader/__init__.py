"""Makes batches of files, in an order that the seed fixes, ahead of the training loop.

`loader` is the public class, on the core's native reader. `reading` says what it reads, and how that is
divided among ranks and batches. `sweep` chooses records where an epoch is not one pass of its set.
`options` and `image` check the options. `pipeline` takes batches from the reader
through `prepare`, the framework and the device; `framework` is what a framework must provide for that.
`columns` are the ragged columns of a batch, and the conversions of arrays to tensors.
"""
