"""The steps under `transform`: ready-made steps with their arguments, and module:function."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cachecd.config.steps import STEPS, checked
from cachecd.config.values import PYTHON_NAME
from cachecd.quantities import shown


class TransformStep(BaseModel):
    """One valid step: `name` and the `argument` that it takes.

    The argument of a ready-made step has all keys of cachecd.config.steps; the argument of module:function
    is None. In YAML a step is its name, or a mapping from the name to the argument.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    argument: Any = None

    @property
    def is_over_groups(self) -> bool:
        """Whether the step takes all records of a group together."""
        return self.name in STEPS and STEPS[self.name].IS_OVER_GROUPS

    @property
    def identity(self) -> Any:
        """The step without the keys that do not change records."""
        if self.argument is None:
            return self.name
        omitted = STEPS[self.name].NOT_IDENTITY
        return {self.name: {k: v for k, v in self.argument.items() if k not in omitted}}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Returns the JSON Schema of the form in YAML."""
        with_argument = {
            "type": "object",
            "properties": {name: step.schema_of_argument() for name, step in STEPS.items()},
            "additionalProperties": {"type": "null"},
            "minProperties": 1,
            "maxProperties": 1,
        }
        return {
            "description": "A step's name, or a mapping of the name to its argument.",
            "anyOf": [{"type": "string"}, with_argument],
        }

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: Any, info: ValidationInfo) -> Any:
        match value:
            case TransformStep():
                return value
            case str():
                name, argument = value, None
            case {"name": str(name), **rest} if not rest.keys() - {"argument"}:
                argument = rest.get("argument")
            case dict() if len(value) == 1 and isinstance(next(iter(value)), str):
                ((name, argument),) = value.items()
            case _:
                raise ValueError(
                    f"found {shown(value)}, expected a step such as decode_image, {{resize: 256}} or "
                    "my_project.prepare:to_tensors"
                )
        return {"name": name, "argument": _argument(name, argument, info.context)}


def _listed(value: Any) -> Any:
    """Returns the steps as a list. Accepts a single step, or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


Steps = Annotated[
    tuple[TransformStep, ...],
    BeforeValidator(_listed, json_schema_input_type=str | tuple[TransformStep, ...]),
]


def _argument(name: str, argument: Any, context: Any) -> Any:
    """Returns the argument in its canonical form. ValueError if the step does not accept the argument."""
    if name in STEPS:
        return checked(name, argument, context)
    if not PYTHON_NAME.fullmatch(name):
        raise ValueError(f"found {name!r}, expected {', '.join(STEPS)} or module:function")
    if argument is not None:
        raise ValueError(
            f"found the argument {shown(argument)}: remove it, because {name} is a function"
        )
    return None
