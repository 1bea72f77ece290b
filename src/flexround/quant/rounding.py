"""The base of all roundings: a parametrization of ``weight`` with learnable scales and integer codes.

To add a rounding, subclass :class:`Rounding` in one file, name it under ``roundings`` in ``params/recipes.yaml`` (or
write ``package.module:Class`` in a recipe) and add a recipe.
"""

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from flexround.quant.grid import Grid, clip


@dataclasses.dataclass(frozen=True)
class Axes:
    """The channel axes of a weight: (Cout, Cin) for linear, (Cout, Cin/groups, h, w) for convolutions.

    Attributes:
        output: axis of the output channels (0; 1 for a transposed ``Conv1D``).
        input: axis of the input channels of a convolution; None for linear layers, which have no s4.
    """

    output: int = 0
    input: int | None = None

    def matrix(self, x: Tensor) -> Tensor:
        """Return a weight, or a step per channel, as (Cout, features), or (Cout, 1); shape () stays unchanged."""
        return x.transpose(0, self.output).flatten(1) if x.ndim else x

    def undo_matrix(self, matrix: Tensor, like: Tensor) -> Tensor:
        """Undo ``matrix``: return a (Cout, features) tensor with the shape of the weight ``like``."""
        return matrix.reshape(like.transpose(0, self.output).shape).transpose(0, self.output)


class Rounding(nn.Module):
    """The map W -> Ŵ of one weight.

    Args of the constructor:
        weight: a copy of the full-precision weight; only its shape and initial values are read.
        grid: a copy of the initial grid, the same for every rounding.
        axes: channel axes of the weight.
        **options: a recipe's ``options``.

    Attributes:
        fusable: of the class, whether ``forward`` uses ``fused``.
        needs_inputs: of the class, whether ``fit`` must be called before the block is learned.
        low, high: the smallest and the largest code, as in ``Grid.bounds``; tensors while ``fused``.
        fused: while learning, whether ``forward`` and ``regularizer`` run compiled.
    """

    fusable = False
    needs_inputs = False

    def __init__(self, weight: Tensor, grid: Grid, axes: Axes) -> None:
        super().__init__()
        self.grid = grid
        self.axes = axes
        self.low, self.high = grid.bounds
        self.fused = False

    def forward(self, weight: Tensor) -> Tensor:
        """Return the differentiable Ŵ of learning (soft for AdaRound), shape of ``weight``, which stays unchanged."""
        raise NotImplementedError

    def fit(self, weight: Tensor, inputs: Iterable[Tensor]) -> None:
        """Read the inputs that the layer multiplies with ``weight``; preceding layers are already fitted.

        Args:
            weight: a copy of the full-precision weight.
            inputs: float32 (groups, n, features) in batches. Output channels are in the order of the groups.
                Each is a sum over its group's features, in the order of the weight's other axes.
        """

    def fuse(self, on: bool) -> None:
        """Switch compilation of ``forward`` and ``regularizer`` on or off."""
        self.fused = on
        self.low, self.high = (torch.as_tensor(b).to(self.grid.step) if on else b for b in self.grid.bounds)

    def step(self) -> Tensor:
        """Return the current step s1, shape of ``grid.step``."""
        return self.grid.step

    def final_grid(self) -> Grid:
        """Return the grid of the final codes: the initial grid with the current step."""
        return dataclasses.replace(self.grid, step=self.step())

    @torch.no_grad()
    def codes(self, weight: Tensor) -> Tensor:
        """Return the final integer codes c with Ŵ = c · step, as a float tensor of the weight's shape.

        The default derives the codes from ``forward``, which must then return values on the grid.
        """
        grid = self.final_grid()
        return clip((self.forward(weight) / grid.step).round_(), *grid.bounds)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the learnable parameters by the name of their learning rate; by default one group ``all``."""
        return {"all": [parameter for parameter in self.parameters() if parameter.requires_grad]}

    def regularizer(self, beta: float) -> Tensor | None:
        """Return the unweighted regularisation term, a scalar, at the annealing exponent ``beta``, or None."""
        return None

    def ones_log(self, weight: Tensor, *axes: int) -> nn.Parameter:
        """Return zeros (ln 1), the start of S2, s3 or s4; the shape is the weight's along ``axes`` and 1 elsewhere."""
        shape = [size if dim in axes else 1 for dim, size in enumerate(weight.shape)]
        return nn.Parameter(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
