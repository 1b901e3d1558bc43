"""What a session offers to TensorFlow: whole runs as pipelines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Unpack

from cachecd_client.errors import CallerError
from cachecd_client.numbering import Numbering

if TYPE_CHECKING:
    import tensorflow

    from cachecd_client.epoch import Epoch
    from cachecd_client.tf_run import RunOptions
    from cachecd_client.weights import Mixing


class TensorFlowRuns(ABC):
    """The part of a session that only trainers with TensorFlow use."""

    _job: str
    _numberings: dict[tuple[str, str, int | None], Numbering]

    @abstractmethod
    def epochs(
        self,
        dataset: str | Mixing,
        n: int | None = None,
        job: str | None = None,
        start: int = 0,
        timeout: float | None = None,
        *,
        agree: bool = True,
    ) -> Iterator[Epoch]: ...

    @abstractmethod
    def close(self) -> None: ...

    def tf_dataset(
        self,
        dataset: str,
        batch_size: int,
        epochs: int | None = None,
        **options: Unpack[RunOptions],
    ) -> tensorflow.data.Dataset:
        """A stock tf.data pipeline over epoch after epoch: one for a whole `fit`, endless by default.

        Elements are those of `Epoch.tf_dataset`, with the same options (label, shuffle, seed,
        drop_last, pad_last, features, rank, world) and defaults. Each set is read to its end; then, on the
        pipeline's own way, the next is acquired and the last released, so that files stay while TensorFlow
        reads them, and a growing cache is seen to grow. Without a daemon at a boundary the set is
        repeated, reshuffled, and the log says so.

        `epochs`: end after so many sets. `start`: the first one's number, for a run that resumes. An
        iterator made after others goes on with the next set, and has an order of its own; the lease
        ends with the iterator. With tf.distribute, `batch_size` is the global one, as Keras says.

        The first set is acquired here; errors as `acquire`. Those of a boundary come out of TensorFlow
        as tf.errors.OpError with the message, a SchemaError too if the features have changed by then.
        """
        given: object = dataset
        if not isinstance(given, str):
            from cachecd_client.mixture import NO_TF_DATASET

            raise CallerError(NO_TF_DATASET)
        from cachecd_client import tf_run

        key = dataset, options.get("job") or self._job, options.get("rank")
        numbering = self._numberings.setdefault(key, Numbering())
        return tf_run.dataset(self, dataset, batch_size, numbering, epochs=epochs, **options)

    def input_fn(
        self,
        dataset: str,
        batch_size: int,
        epochs: int | None = None,
        **options: Unpack[RunOptions],
    ) -> Callable[[], tensorflow.data.Dataset]:
        """`tf_dataset` as the function that an Estimator calls, as often as it likes.

        Nothing is rebuilt by a call: it takes the next set on lease, in milliseconds.
        """
        return partial(self.tf_dataset, dataset, batch_size, epochs, **options)
