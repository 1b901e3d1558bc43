"""All contenders: one family a module, none of which imports a framework before it is measured."""

from __future__ import annotations

from tests.bench.contenders import (
    array_record_files,
    baselines,
    litdata_chunks,
    memmap,
    mosaic_mds,
    ours,
    processes,
    tf_data,
    tfrecord_package,
    webdataset_tar,
)
from tests.bench.contenders.contract import Contender

_FAMILIES = (
    baselines,
    ours,
    tf_data,
    memmap,
    processes,
    tfrecord_package,
    webdataset_tar,
    litdata_chunks,
    mosaic_mds,
    array_record_files,
)
CONTENDERS: dict[str, Contender] = {
    contender.name: contender for family in _FAMILIES for contender in family.CONTENDERS
}
