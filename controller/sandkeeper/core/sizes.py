"""Instance sizes: the named ones, custom ones, and the engine settings each turns into.

Owns the meaning of vCPU and MiB. Never decides who may have which size (see `admission`).
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.errors import InvalidArgument

CPU_PERIOD_US = 100_000
MIN_VCPU = 0.05
MIN_MEMORY_MIB = 16
MIN_PIDS = 160
"""boxd keeps 68 threads of its own, which count too."""


class Size(BaseModel):
    """What one runtime may use.

    Attributes:
        name: A catalogue name, or `custom`.
        vcpu: Processor share; 0.25 is a quarter of one core.
        memory_mib: Memory limit in MiB; swap is not added to it.
        pids: Upper bound of processes and threads, boxd's own included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    vcpu: Annotated[float, Field(strict=True, ge=MIN_VCPU, le=1024, allow_inf_nan=False)]
    memory_mib: Annotated[int, Field(strict=True, ge=MIN_MEMORY_MIB, le=16 * 1024 * 1024)]
    pids: Annotated[int, Field(strict=True, ge=MIN_PIDS, le=65_536)] = 1024

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes."""
        return self.memory_mib * 1024 * 1024

    @property
    def cpu_quota_us(self) -> int:
        """CFS quota in microseconds per `CPU_PERIOD_US`."""
        return max(1_000, round(self.vcpu * CPU_PERIOD_US))


NAMED_SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        Size(name="basic", vcpu=2, memory_mib=512),
        Size(name="lite", vcpu=0.25, memory_mib=256),
        Size(name="standard-1", vcpu=0.5, memory_mib=4096),
        Size(name="standard-2", vcpu=1, memory_mib=6144),
        Size(name="standard-3", vcpu=2, memory_mib=8192),
        Size(name="standard-4", vcpu=4, memory_mib=12288),
    )
}
DEFAULT_SIZE_NAME = "basic"


def parse_size(value: Any) -> Size:
    """Turn what a caller gave as size into a `Size`.

    Args:
        value: None (the default size), a catalogue name, a `Size`, or a mapping with `vcpu` and `memory_mib`
            and optionally `pids`. Numbers must be finite, positive and of the right kind; `"4g"` is no number.

    Raises:
        InvalidArgument: `size_invalid`, naming the field, or `size_unknown` for a name not in the catalogue.
    """
    if value is None:
        return NAMED_SIZES[DEFAULT_SIZE_NAME]
    if isinstance(value, Size):
        return value
    if isinstance(value, str):
        return _named(value)
    if isinstance(value, dict):
        return _custom(value)
    raise InvalidArgument(
        f"size must be a name or vcpu and memory_mib, not {type(value).__name__}",
        code="size_invalid",
        details={"field": "size"},
    )


def _named(name: str) -> Size:
    size = NAMED_SIZES.get(name)
    if size is None:
        raise InvalidArgument(
            f"there is no size called {name[:64]!r}",
            code="size_unknown",
            advice=f"use one of {', '.join(NAMED_SIZES)}, or give vcpu and memory_mib",
            details={"field": "size", "known": list(NAMED_SIZES)},
        )
    return size


def _custom(fields: dict[str, Any]) -> Size:
    unknown = sorted(set(map(str, fields)) - {"name", "vcpu", "memory_mib", "pids"})
    if unknown:
        raise InvalidArgument(
            f"size has no field {unknown[0]!r}", code="size_invalid", details={"field": f"size.{unknown[0]}"}
        )
    vcpu = _number(fields, field="vcpu", smallest=MIN_VCPU, largest=1024)
    memory = _whole(fields, field="memory_mib", smallest=MIN_MEMORY_MIB, largest=16 * 1024 * 1024)
    if "pids" not in fields:
        return Size(name="custom", vcpu=vcpu, memory_mib=memory)
    pids = _whole(fields, field="pids", smallest=MIN_PIDS, largest=65_536)
    return Size(name="custom", vcpu=vcpu, memory_mib=memory, pids=pids)


def _number(fields: dict[str, Any], *, field: str, smallest: float, largest: float) -> float:
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(field, f"must be a number, not {value!r:.40}")
    if abs(value) > sys.maxsize or not math.isfinite(value) or not smallest <= value <= largest:
        raise _bad(field, f"must be between {smallest} and {largest}, not {value!r:.40}")
    return float(value)


def _whole(fields: dict[str, Any], *, field: str, smallest: int, largest: int) -> int:
    value = _number(fields, field=field, smallest=smallest, largest=largest)
    if value != int(value):
        raise _bad(field, f"must be a whole number, not {value!r:.40}")
    return int(value)


def _bad(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"size.{field} {problem}",
        code="size_invalid",
        advice="give a catalogue size or finite numbers within the bounds",
        details={"field": f"size.{field}"},
    )
