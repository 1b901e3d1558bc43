"""All contenders: one family a module, none of which imports a framework before it is measured."""

from __future__ import annotations

from tests.bench.contenders import (
    baselines,
    litdata_chunks,
    memmap,
    mosaic_mds,
    ours,
    tf_data,
    webdataset_tar,
)
from tests.bench.contenders.contract import Contender

_FAMILIES = (
    baselines,
    ours,
    tf_data,
    memmap,
    webdataset_tar,
    litdata_chunks,
    mosaic_mds,
)
CONTENDERS: dict[str, Contender] = {
    contender.name: contender for family in _FAMILIES for contender in family.CONTENDERS
}
