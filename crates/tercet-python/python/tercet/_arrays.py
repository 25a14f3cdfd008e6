"""Arrays of `bfloat16`, which other libraries read through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _tercet


class BFloat16Array(np.ndarray[Any, Any]):
    """An array of `ml_dtypes.bfloat16`. Unlike plain arrays of that dtype it exports DLPack, so that
    `torch.from_dlpack` and `jax.dlpack.from_dlpack` read it without a copy."""

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the array. Arrays of other dtypes, such as results of comparisons, export as usual."""
        if self.dtype.name != "bfloat16":
            return np.asarray(self).__dlpack__(stream=stream)
        if dl_device is not None and tuple(dl_device) != (1, 0):
            raise BufferError(f"the array is in host memory; device {dl_device} was requested")
        return _tercet._bfloat16_capsule(self.copy() if copy else self)
