"""A session with one daemon: `connect` and `Cache`.

`acquire` takes leases and ends them, `epochs` takes the epochs of a run one after another, `tf_run` reads
them by stock tf.data,
`private_daemon` starts a daemon that ends with this process.
"""
