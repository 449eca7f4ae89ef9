"""The values that every floor of the engine shares.  No torch, no files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

K = TypeVar("K")
V = TypeVar("V")

BLOCK_ELEMENTS = 1 << 18
"""Elements of one tensor that are computed together; a constant of the algorithm."""

SPAN_BLOCKS = 64
"""Consecutive blocks of one tensor that are scheduled together."""

Split = Literal["elements", "rows", "leading", "tensor"]
"""How a tensor may be cut into blocks.

``elements`` anywhere; ``rows`` between rows along the last dimension; ``leading`` between
entries of dimension 0, each flattened (a 1-D tensor is one row); ``tensor`` not at all.
"""


@dataclass(frozen=True)
class DType:
    """One element type of the safetensors format.

    Attributes:
        code: its name in a file header, such as ``BF16``.
        name: its name in recipes and in torch, such as ``bfloat16``.
        itemsize: bytes of one element.
        is_float: whether merge arithmetic applies; other tensors are copied.
    """

    code: str
    name: str
    itemsize: int
    is_float: bool


DTYPES: Mapping[str, DType] = {
    d.code: d
    for d in (
        DType("F64", "float64", 8, True),
        DType("F32", "float32", 4, True),
        DType("F16", "float16", 2, True),
        DType("BF16", "bfloat16", 2, True),
        DType("F8_E4M3", "float8_e4m3fn", 1, True),
        DType("F8_E5M2", "float8_e5m2", 1, True),
        DType("I64", "int64", 8, False),
        DType("I32", "int32", 4, False),
        DType("I16", "int16", 2, False),
        DType("I8", "int8", 1, False),
        DType("U64", "uint64", 8, False),
        DType("U32", "uint32", 4, False),
        DType("U16", "uint16", 2, False),
        DType("U8", "uint8", 1, False),
        DType("BOOL", "bool", 1, False),
    )
}
DTYPE_BY_NAME: Mapping[str, DType] = {d.name: d for d in DTYPES.values()}
OUTPUT_DTYPES = ("float64", "float32", "float16", "bfloat16")
"""Names that a recipe may give as ``dtype`` or ``out_dtype``."""


GENERIC_FOLDER = re.compile(r"model|model_weights|weights|checkpoints?|checkpoint-\d+|snapshots|[0-9a-f]{40}|\.{1,2}|~")
"""Folder names that say nothing of the model inside."""


@dataclass(frozen=True)
class ModelReference:
    """How a user names a model: a local path or a Hub id, a revision, an adapter.

    ``occurrence`` tells apart two uses of one model in the same place of a recipe.
    """

    path: str
    revision: str | None = None
    lora: ModelReference | None = None
    occurrence: int = 0

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Read ``path``, ``path@revision`` or ``model+adapter``; an existing path is a path.

        Raises:
            ValueError: the text is empty.
        """
        if text.strip() and os.path.exists(os.path.expanduser(text)):
            return cls(text)
        text = text.strip()
        if not text:
            raise ValueError("a model name is empty")
        if os.path.exists(os.path.expanduser(text)) or _looks_like_path(text):
            return cls(text)
        model, plus, adapter = text.partition("+")
        if plus and model and adapter:
            return replace(cls.parse(model), lora=cls.parse(adapter))
        path, _, revision = text.partition("@")
        return cls(path, revision or None)

    @property
    def short_name(self) -> str:
        """What people call the model: the last part of its path that is not a name of any model's folder."""
        parts = [part.removesuffix(".safetensors") for part in re.split(r"[\\/]", self.path) if part]
        telling = [part for part in parts if not GENERIC_FOLDER.fullmatch(part)]
        return (telling or parts or [self.path])[-1]

    def __str__(self) -> str:
        text = self.path if self.revision is None else f"{self.path}@{self.revision}"
        return text if self.lora is None else f"{text}+{self.lora}"


def _looks_like_path(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or bool(re.match(r"[A-Za-z]:[\\/]", text))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a file header says of one tensor.

    Attributes:
        name: the tensor's name in its file.
        dtype: safetensors code, a key of `DTYPES`.
        shape: its dimensions, row-major.
        shard: file name inside the checkpoint.
        start: first byte, counted from the beginning of the file.
        stop: one past the last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str = ""
    start: int = 0
    stop: int = 0

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def is_float(self) -> bool:
        return DTYPES[self.dtype].is_float


@dataclass(frozen=True)
class WeightInfo:
    """What the architecture says of one tensor.

    Attributes:
        name: its name in the output.
        is_embed: whether its rows belong to tokens (embedding or output head).
        optional: whether a model works without it.
        aliases: other names under which models store the same weight.
        layer: index of the layer it belongs to, or None.
        role: the name with the layer index and the ending taken out, such as ``self_attn.q_proj``.
    """

    name: str
    is_embed: bool = False
    optional: bool = False
    aliases: tuple[str, ...] = ()
    layer: int | None = None
    role: str = ""


class ImmutableMap(Mapping[K, V], Generic[K, V]):
    """A mapping that can be hashed, so that tasks holding it can be compared."""

    __slots__ = ("_data", "_hash")

    def __init__(self, data: Mapping[K, V] | None = None) -> None:
        self._data: dict[K, V] = dict(data or {})
        self._hash: int | None = None

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._data.items()))
        return self._hash

    def __reduce__(self) -> tuple[type[ImmutableMap[K, V]], tuple[dict[K, V]]]:
        """Without the hash, which is another one in another process."""
        return type(self), (self._data,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self._data) == dict(other)

    def __repr__(self) -> str:
        return f"ImmutableMap({self._data!r})"


@dataclass(frozen=True)
class ConfigParameterDef:
    """One parameter of a merge method.

    Attributes:
        name: as written in recipes.
        type: ``float``, ``int``, ``bool`` or ``str``.
        required: whether a recipe must give it.
        default_value: used when the recipe is silent.
        minimum, maximum: inclusive bounds, or None.
        help: one sentence for people.
    """

    name: str
    type: type = float
    required: bool = False
    default_value: Any = None
    minimum: float | None = None
    maximum: float | None = None
    help: str = ""


class Noise(Protocol):
    """The random numbers of one block: a hash of seed, tensor, model and flat index."""

    def uniform(self, model: int) -> Any:
        """Float32 tensor in [0, 1) of the block's shape for ``tensors[model]``."""
        ...

    def bits(self, model: int) -> Any:
        """Int32 tensor of 32 random bits of the block's shape for ``tensors[model]``."""
        ...


@dataclass
class Block:
    """A piece of every input of one output tensor, widened to float32 (or float64).

    The tensors are the worker's own: a method may overwrite them.

    Attributes:
        tensors: one per model, without the base, in the recipe's order; equal shapes:
            ``[elements]``, ``[rows, row length]`` or the tensor's own shape, as `Split` says.
        base: the base model's piece, or None.
        noise: random numbers of this block.
    """

    tensors: list[Any]
    base: Any | None
    noise: Noise


@runtime_checkable
class Fold(Protocol):
    """A measurement over a whole tensor, taken block by block and joined in order."""

    def start(self) -> Any:
        """The state before any block."""
        ...

    def add(self, state: Any, block: Block) -> Any:
        """The state after one more block (may change ``state`` in place)."""
        ...

    def join(self, left: Any, right: Any) -> Any:
        """The state of two neighbouring spans together (may change ``left`` in place)."""
        ...

    def finish(self, state: Any) -> Any:
        """The measured value, or the next `Fold` when another pass over the data is needed."""
        ...


@dataclass(frozen=True)
class TensorContext:
    """What is constant over one output tensor while its blocks are computed.

    Attributes:
        output_weight: the tensor that is being made.
        shape: its shape.
        parameters: the method's global parameters, resolved for this tensor.
        tensor_parameters: per-model parameters, aligned with ``Block.tensors``.
        models: references aligned with ``Block.tensors``.
        base_model: the base's reference when the block carries one.
    """

    output_weight: WeightInfo
    shape: tuple[int, ...]
    parameters: ImmutableMap[str, Any] = field(default_factory=ImmutableMap)
    tensor_parameters: tuple[ImmutableMap[str, Any], ...] = ()
    models: tuple[ModelReference, ...] = ()
    base_model: ModelReference | None = None

    def per_model(self, name: str) -> list[Any]:
        """One parameter's values, aligned with ``Block.tensors``."""
        return [parameters[name] for parameters in self.tensor_parameters]


@dataclass(frozen=True)
class Vocabulary:
    """What a recipe may name.

    Attributes:
        methods: by canonical name: the method's global parameters and its per-model parameters.
        aliases: other names of methods, each with the canonical one.
    """

    methods: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    aliases: Mapping[str, str] = field(default_factory=dict)
