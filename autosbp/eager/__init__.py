"""Tensors with a layout, computed on as torch tensors are (OneFlow section 3.4, Table 4).

    p0, p1 = Placement([0, 1]), Placement([2, 3])
    a, b = eager.randn(4, 5, placement=p0, sbp="S0"), eager.randn(5, 8, placement=p0, sbp="B")
    y = torch.matmul(a, b).to_layout(p1, "B")

Every process of the process group runs the same program. A process that a placement does not have knows shapes and
layouts of its tensors, and holds no part of them.
"""

from autosbp.eager._record import recording
from autosbp.eager.factories import distribute, from_local, ones, randn, zeros
from autosbp.eager.placement import Placement
from autosbp.eager.tensor import PlacedTensor

__all__ = ["PlacedTensor", "Placement", "distribute", "from_local", "ones", "randn", "recording", "zeros"]
