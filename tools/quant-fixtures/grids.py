"""Writes the tables of the IQ1, IQ2 and IQ3 formats: crates/welte-formats/src/quant/grids.bin.

Needs gguf==0.19.0. Run from the repository's root:

    python3 tools/quant-fixtures/grids.py

An entry is a u16 (little-endian). IQ1 and IQ2 have eight numbers of two bits in an entry, IQ3 four numbers of three bits, the
first in the lowest bits. A number selects one of the format's magnitudes. The tables follow each other in the order of TABLES.
"""

from pathlib import Path

import numpy as np
from gguf import quants

TABLES = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]


def main():
    out = b""
    for name in TABLES:
        kind = getattr(quants, name)
        kind.init_grid()
        entries, length = kind.grid_shape
        grid = kind.grid.reshape(entries, length)
        numbers = np.searchsorted(np.array(kind.grid_map), grid)
        assert (np.array(kind.grid_map)[numbers] == grid).all()
        shifts = np.arange(length) * (16 // length if length == 8 else 3)
        out += (numbers << shifts).sum(1).astype("<u2").tobytes()
    Path("crates/welte-formats/src/quant/grids.bin").write_bytes(out)


if __name__ == "__main__":
    main()
