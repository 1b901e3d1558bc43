"""Converts the arrays of a batch to values of torch, TensorFlow or JAX.

Each of `torch`, `tensorflow` and `jax` implements `loader.framework.Framework`, and imports the framework,
so import these modules late. `torch_dataset` is for torch's DataLoader, `tf_pipeline` is stock tf.data over
the same files. `collective` gathers numbers from all processes of a run.
"""
