import numpy as np
from numpy.typing import NDArray

VERSION: int

def least_sums(
    one: NDArray[np.float64], two: NDArray[np.float64], out: NDArray[np.float64], first: int, end: int, /
) -> None: ...
def message(
    base: NDArray[np.float64], table: NDArray[np.float64], grain: float, out: NDArray[np.float64], /
) -> float: ...
def cheapest_ways(
    sources: NDArray[np.int64], targets: NDArray[np.int64], seconds: NDArray[np.float64], costs: NDArray[np.float64], /
) -> None: ...
def run_passes(
    firsts: NDArray[np.int64],
    passes: NDArray[np.int64],
    sources: NDArray[np.int64],
    follows: NDArray[np.int64],
    own_s: NDArray[np.float64],
    sends_s: NDArray[np.float64],
    num_micro: int,
    beside: bool,
    starts: NDArray[np.float64],
    ready: NDArray[np.float64],
    /,
) -> None: ...
def pass_messages(
    firsts: NDArray[np.int64],
    arcs: NDArray[np.int64],
    tables: NDArray[np.float64],
    begins: NDArray[np.int64],
    costs: NDArray[np.float64],
    shares: NDArray[np.float64],
    messages: NDArray[np.float64],
    values: NDArray[np.int64],
    excess: NDArray[np.float64],
    shifts: NDArray[np.float64],
    first: int,
    end: int,
    back: bool,
    grain: float,
    bound: float,
    /,
) -> float: ...
def cut_works(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    works: NDArray[np.float64],
    prices: NDArray[np.float64],
    lowest: NDArray[np.int64],
    highest: NDArray[np.int64],
    least: NDArray[np.float64],
    sources: NDArray[np.int64],
    /,
) -> None: ...
def deal_out(bands: NDArray[np.float64], rows: NDArray[np.float64], /) -> None: ...
