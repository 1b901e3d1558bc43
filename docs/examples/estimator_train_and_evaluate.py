"""An Estimator, with TensorFlow 2.15, the last that has them, in an environment of its own:

cachecd run docs/examples/digits.yaml -- /opt/tf215/bin/python docs/examples/estimator_train_and_evaluate.py
"""

import tempfile
import time

import tensorflow as tf

from cachecd_client import connect

STEPS = 60


def model_fn(features, labels, mode):
    flat = tf.reshape(tf.cast(features["image"], tf.float32) / 255, [-1, 32 * 32])
    weights = tf.compat.v1.get_variable("weights", [32 * 32, 10])
    logits = flat @ weights + tf.compat.v1.get_variable("bias", [10])
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.compat.v1.train.AdamOptimizer(3e-3)
    train = optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step())
    hits = tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train, eval_metric_ops={"accuracy": hits}
    )


with tempfile.TemporaryDirectory() as folder, connect() as cache:
    train = cache.input_fn("train", 32, label="label")
    evaluate = cache.input_fn("eval", 64, epochs=1, label="label")
    config = tf.estimator.RunConfig(folder, save_checkpoints_steps=STEPS // 2)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    result, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train, max_steps=STEPS),
        tf.estimator.EvalSpec(evaluate, steps=None, throttle_secs=0),
    )
    print(f"step {result['global_step']}: accuracy {result['accuracy']:.1%}")

    for _ in range(2):  # or the same alternation by hand: every call goes on with the next set
        began = time.monotonic()
        with tf.Graph().as_default():
            train()
        print(f"input_fn took {time.monotonic() - began:.3f} s")
        estimator.train(train, steps=STEPS)
        result = estimator.evaluate(evaluate)
        print(f"step {result['global_step']}: accuracy {result['accuracy']:.1%}")
