"""Time and size of one secure sparse sum: encode, mask and decode, on one thread.

Run ``OMP_NUM_THREADS=1 python benchmarks/sparse_sum.py [K L D N]``; the default is the
size of FEMNIST in [1]: K = 62 clusters, L = 100 parties, d = 784 columns, n = 36725
rows, and so 193 values per coordinate with the step 1 / sqrt(n).

[1] C. Pan, J. Sima, S. Prakash, V. Rana, O. Milenkovic, "Machine Unlearning of
Federated Clusters", ICLR 2023.
"""

import math
import resource
import sys
from time import perf_counter

import numpy as np

from vfl_flower.secure_aggregation.keys import new_private_key, public_key
from vfl_flower.secure_aggregation.masks import PairwiseMasks, masked
from vfl_flower.secure_aggregation.sparse_sum import Field, SparseSum


def main(n_clusters: int, n_parties: int, n_columns: int, n_rows: int) -> None:
    """Print the seconds of each part and the bytes of a message."""
    rng = np.random.default_rng(0)
    n_values = round(math.sqrt(n_rows)) + 1
    code = SparseSum(n_clusters, n_parties, n_columns, n_values, rng.bytes(16))
    group = Field(parties=n_parties)
    shape = (n_parties, n_clusters)
    bins = rng.integers(n_values, size=(*shape, n_columns))
    counts = rng.integers(1, 1000, size=shape)
    print(f"K L = {code.n_slots}, d = {n_columns}, {code.bits} bits a coordinate")

    total = np.zeros(code.size, dtype=np.uint64)
    times = []
    for bins_l, counts_l in zip(bins, counts, strict=True):
        start = perf_counter()
        message = code.encode(bins_l, counts_l)
        times.append(perf_counter() - start)
        group.add(total, message, out=total)
    print(f"encode, a party       {np.median(times):8.2f} s (worst {max(times):.2f} s)")

    private = [new_private_key() for _ in range(n_parties)]
    masks = PairwiseMasks(private[0], [public_key(key) for key in private], 0, 1)
    start = perf_counter()
    masked(message, group, masks, "action", "name", 0)
    print(f"mask, a party         {perf_counter() - start:8.2f} s")

    bits = n_columns * code.bits
    floor = 8 * code.n_slots * (2 + -(-bits // 61))
    print(
        f"message, a party      {message.nbytes / 1e6:8.2f} MB "
        f"({message.nbytes / floor:.4f} of 8 (2 K L + K L ceil(d bits / 61)))"
    )

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = perf_counter()
    decoded, decoded_counts = code.decode(total, int(counts.sum()))
    print(f"decode, the server    {perf_counter() - start:8.2f} s")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory           {after / 1e3:8.0f} MB ({before / 1e3:.0f} before)")

    # No two random bins of so many columns are equal.
    rows = bins.reshape(-1, n_columns)
    order = np.lexsort(rows.T[::-1])
    assert np.array_equal(decoded, rows[order])
    assert np.array_equal(decoded_counts, counts.ravel()[order])


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*(arguments or (62, 100, 784, 36725)))
