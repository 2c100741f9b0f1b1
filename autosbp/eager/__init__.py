"""Tensors with a layout, used like torch tensors (OneFlow section 3.4, Table 4).

    p0, p1 = Placement([0, 1]), Placement([2, 3])
    a, b = eager.randn(4, 5, placement=p0, sbp="S0"), eager.randn(5, 8, placement=p0, sbp="B")
    y = torch.matmul(a, b).to_layout(p1, "B")

Every process of the process group runs the same program. A process outside of a placement knows shapes and layouts of
the tensors there, and holds no part of them.
"""

from autosbp.eager._comm_record import recording
from autosbp.eager.placement import Placement
from autosbp.eager.tensor import PlacedTensor
from autosbp.eager.tensor_factories import distribute, from_local, ones, randn, zeros

__all__ = ["PlacedTensor", "Placement", "distribute", "from_local", "ones", "randn", "recording", "zeros"]
