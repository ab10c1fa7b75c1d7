# SPDX-License-Identifier: Apache-2.0
# Writes the arrays of this folder: the routing of 2 layers, 2 ranks, 3 tokens, top-2, as numpy writes it in each way.
# Made with numpy 2.4.6: python make.py
import numpy as np

idx = np.array([7, 0, 1, 2, 3, -1, 6, 5, -1, -1, 0, 7, 4, 3, 2, 1, 0, 6, 5, 4, 1, -1, 2, 6], np.int64).reshape(2, 2, 3, 2)
w = (np.arange(24) / 8).reshape(idx.shape)  # each exact in a float of 16 bits

np.save("i8.npy", idx)
np.save("i1.npy", idx.astype(np.int8))
np.save("i2_big.npy", idx.astype(">i2"))
np.save("i4_fortran.npy", np.asfortranarray(idx.astype(np.int32)))
np.save("one_layer.npy", idx[1])
np.save("u4.npy", np.abs(idx).astype(np.uint32))
np.save("f4.npy", idx.astype(np.float32))
for version in (2, 3):
    with open(f"version{version}.npy", "wb") as f:
        np.lib.format.write_array(f, idx, version=(version, 0))
np.savez("f4.npz", idx=idx, weights=w.astype(np.float32), experts=8)
np.savez("f2.npz", idx=idx.astype(np.int32), weights=w.astype(np.float16), experts=np.uint16(8))
np.savez_compressed("f8_fortran.npz", weights=np.asfortranarray(w), idx=idx)
np.savez("f8_big.npz", idx=idx, weights=w.astype(">f8"))
