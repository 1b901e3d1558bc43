"""A session with one daemon: `connect` and `Cache`.

`acquire` acquires and releases leases, `epochs` acquires the epochs of a run one after another, `tf_run`
reads them with stock tf.data, `private_daemon` starts a daemon that ends with this process.
"""
