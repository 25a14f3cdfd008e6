"""Makes the small files of this folder with numpy: python3 make.py"""

import numpy as np

DTYPES = ["?", "i1", "u1", "<f2", "<i2", "<u2", "<f4", "<i4", "<u4", "<f8", "<i8", "<u8"]

counting = np.arange(6).reshape(2, 3)
for dtype in DTYPES:
    array = (counting % 2 if dtype == "?" else counting).astype(dtype)
    np.save(f"c_{array.dtype.name}.npy", array)
for dtype in [">f2", ">f4", ">i4", ">f8"]:
    np.save(f"big_{np.dtype(dtype).name}.npy", counting.astype(dtype))
np.save("fortran.npy", np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4)))
np.save("scalar.npy", np.float32(2.5))
np.save("vector.npy", np.arange(3, dtype="<i4"))
np.save("empty.npy", np.zeros((2, 0, 3), "<f4"))
np.save("complex.npy", np.zeros(2, "<c8"))
np.save("structured.npy", np.zeros(2, [("a", "<f4"), ("b", "<i4")]))
for version in [(2, 0), (3, 0)]:
    with open(f"version{version[0]}.npy", "wb") as file:
        np.lib.format.write_array(file, counting.astype("<f4"), version)
arrays = {"x": counting.astype("<f4"), "ids": np.arange(3, dtype="<i4")}
np.savez("stored.npz", **arrays)
np.savez_compressed("deflated.npz", **arrays)
