"""The section `source.array`: the objects that hold arrays, and the windows that become records."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cachecd.config.section import SectionModel, check_feature, conflict
from cachecd.config.values import Integer, Text

# NumPy's names of the dtypes that a record may have. The short forms may begin with the byte order.
_DTYPE = re.compile(
    r"bool|bfloat16|float(16|32|64)|u?int(8|16|32|64)|[<>=|]?(b1|[iu][1248]|f[248])"
)


def _dtype(value: str) -> str:
    if not _DTYPE.fullmatch(value):
        raise ValueError(
            f"found {value!r}, expected a dtype such as float32, int16, bfloat16 or >i2 (big-endian)"
        )
    return value


def _section(value: Any) -> Any:
    """Turns a single pattern into the section of an array."""
    return {"match": value} if isinstance(value, str) else value


Side = Annotated[Integer, Field(ge=1, le=2**40)]


class ArrayFile(SectionModel):
    """Which objects have an array, and the properties that the objects do not state."""

    match: Text | None = Field(
        None,
        description=("Pattern of the keys to read; * stands for any text. Default: every object."),
        examples=["*.audio.npy"],
    )
    dtype: Annotated[Text, AfterValidator(_dtype)] | None = Field(
        None,
        description=(
            "Dtype of raw binary, with its byte order, such as >i2. A .npy file states its own dtype, "
            "which must agree. But it stores bfloat16 as two bytes without a type: set `dtype: bfloat16`."
        ),
        examples=["float32", ">i2"],
    )
    shape: tuple[Side, ...] = Field(
        (),
        description="Shape of one row of raw binary. Default: a row is one number.",
        examples=[[2]],
    )

    @model_validator(mode="after")
    def _shape_has_a_dtype(self) -> ArrayFile:
        if self.shape and self.dtype is None:
            raise conflict(
                ("shape",), "`dtype` is missing: set it, because `shape` describes raw binary"
            )
        return self


class ArrayConfig(ArrayFile):
    """Windows of arrays that are too large to be one record."""

    window: Integer = Field(
        ge=1,
        le=2**40,
        description=(
            "Rows along axis 0 that make one record. With several arrays, rows of the first array."
        ),
        examples=[16000],
    )
    stride: Integer | None = Field(
        None,
        ge=1,
        le=2**40,
        description=(
            "Rows from the start of one window to the start of the next. If `stride` is less than "
            "`window`, windows overlap. If it is more, the rows between two windows are skipped. "
            "Default: `window`."
        ),
        examples=[8000],
    )
    arrays: dict[
        str,
        Annotated[ArrayFile, BeforeValidator(_section, json_schema_input_type=str | ArrayFile)],
    ] = Field(
        {},
        description=(
            "Several arrays that are read together. Each feature has a pattern (or a section) with "
            "exactly one *. Objects whose text at * is equal belong together."
        ),
        examples=[{"audio": "*.audio.npy", "labels": "*.labels.npy"}],
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> ArrayConfig:
        for key in ("match", "dtype", "shape") if self.arrays else ():
            if getattr(self, key):
                raise conflict(
                    (key,),
                    f"found `{key}` next to `arrays`: move it into each entry of `arrays`",
                )
        for name, file in self.arrays.items():
            check_feature(("arrays",), name, "key", "start")
            if file.match is None or file.match.count("*") != 1:
                raise conflict(
                    ("arrays", name),
                    f"found {file.match!r}, expected a pattern with exactly one *. Objects whose text at "
                    "* is equal belong together",
                )
        return self

    @property
    def files(self) -> dict[str, ArrayFile]:
        """Returns the objects of each feature. A single array has the feature `array`."""
        return self.arrays or {"array": self}
