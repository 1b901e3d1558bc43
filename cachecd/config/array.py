"""The configuration of arrays: which objects they are, and the windows that become records."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cachecd.config.objects import check_feature
from cachecd.config.section import SectionModel, conflict
from cachecd.config.values import Integer, Text

# NumPy's names of what a record may hold, and its short forms, which may say the byte order.
_DTYPE = re.compile(
    r"bool|bfloat16|float(16|32|64)|u?int(8|16|32|64)|[<>=|]?(b1|[iu][1248]|f[248])"
)


def _dtype(value: str) -> str:
    if not _DTYPE.fullmatch(value):
        raise ValueError(
            f"found {value!r}, expected a dtype such as float32, int16, bfloat16 or >i2 (big-endian)"
        )
    return value


DType = Annotated[Text, AfterValidator(_dtype)]
Side = Annotated[Integer, Field(ge=1, le=2**40)]


class ArrayFile(SectionModel):
    """Which objects hold an array, and the properties that the objects do not state themselves. In YAML the
    pattern alone is enough."""

    match: Text | None = Field(
        None,
        description="Pattern of the keys to read; * stands for any text. Left out: every object.",
        examples=["*.audio.npy"],
    )
    dtype: DType | None = Field(
        None,
        description=(
            "Dtype of raw binary, with its byte order, such as >i2. A .npy file has its own, which "
            "must agree; it stores bfloat16 as two bytes without a type."
        ),
        examples=["float32", ">i2"],
    )
    shape: tuple[Side, ...] = Field(
        (),
        description="Shape of one row of raw binary. Left out: a row is one number.",
        examples=[[2]],
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(core_schema)
        if cls is not ArrayFile:
            return found
        return {"description": found["description"], "anyOf": [{"type": "string"}, found]}

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_pattern(cls, value: Any) -> Any:
        return {"match": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _shape_has_a_dtype(self) -> ArrayFile:
        if self.shape and self.dtype is None:
            raise conflict(
                ("shape",), "found shape without dtype, expected both: they describe raw binary"
            )
        return self


class ArrayConfig(ArrayFile):
    """Windows of arrays that are too large to be one record."""

    window: Integer = Field(
        ge=1,
        le=2**40,
        description="Rows along axis 0 that make one record. Of several arrays, rows of the first.",
        examples=[16000],
    )
    stride: Integer | None = Field(
        None,
        ge=1,
        le=2**40,
        description=(
            "Rows from the start of one window to the start of the next: less than `window`, they "
            "overlap; more, rows are left out. Left out: `window`."
        ),
        examples=[8000],
    )
    arrays: dict[str, ArrayFile] = Field(
        {},
        description=(
            "Several arrays that are read together: feature -> pattern (or section) with one *. "
            "Objects for which * stands for the same text belong together."
        ),
        examples=[{"audio": "*.audio.npy", "labels": "*.labels.npy"}],
    )

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_pattern(cls, value: Any) -> Any:
        return value  # a section: the window has no default

    @model_validator(mode="after")
    def _keys_agree(self) -> ArrayConfig:
        for key in ("match", "dtype", "shape") if self.arrays else ():
            if getattr(self, key):
                raise conflict((key,), f"found {key} beside arrays, expected it in each of them")
        for name, file in self.arrays.items():
            check_feature(("arrays",), name, "key", "start")
            if file.match is None or file.match.count("*") != 1:
                raise conflict(
                    ("arrays", name),
                    f"found {file.match!r}, expected a pattern with one *: what it stands for is the "
                    "stem that belongs together",
                )
        return self

    @property
    def files(self) -> dict[str, ArrayFile]:
        """Returns the objects of each feature. A single array has the feature `array`."""
        return self.arrays or {"array": self}
