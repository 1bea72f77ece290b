"""A rounding as a user would write it, in a file of their own."""

from flexround.quant.rounding import Rounding


class AlwaysDown(Rounding):
    """Ŵ = s1 ⌊W / s1⌋."""

    def forward(self, weight):
        return (weight / self.grid.step).floor().clamp(self.low, self.high) * self.grid.step
