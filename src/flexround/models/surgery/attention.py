"""PyTorch's attention with separate linears for query, key and value, which are quantized like any linear."""

import torch
from torch import Tensor, nn


def separate_projections(model: nn.Module) -> None:
    """Replace each ``nn.MultiheadAttention`` in place by an equivalent :class:`SeparateAttention`.

    A module with several parents gets one replacement, so that shared layers stay recognisable. Attention with learned
    or zero keys and values (``add_bias_kv``, ``add_zero_attn``) is not replaced. Encoders then return values at padding
    too, where PyTorch's nested tensors leave zeros.
    """
    made: dict[nn.Module, SeparateAttention] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # all names, even of one child
            if type(child) is nn.MultiheadAttention and child.bias_k is None and not child.add_zero_attn:
                made[child] = made.get(child) or SeparateAttention(child)
                setattr(parent, name, made[child])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):  # it would access the weights of PyTorch's attention
            module.use_nested_tensor = False


class SeparateAttention(nn.Module):
    """Attention with four linears; arguments and results as in ``nn.MultiheadAttention`` without dropout."""

    def __init__(self, of: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.batch_first = of.embed_dim, of.num_heads, of.batch_first
        self.in_proj_bias, self._qkv_same_embed_dim = None, False  # makes PyTorch's layers call forward
        weights: tuple[Tensor, ...] = (of.q_proj_weight, of.k_proj_weight, of.v_proj_weight)
        if of.in_proj_weight is not None:
            weights = of.in_proj_weight.detach().chunk(3)
        biases = (None,) * 3 if of.in_proj_bias is None else of.in_proj_bias.detach().chunk(3)
        linears = [_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        self.q_proj, self.k_proj, self.v_proj = linears
        self.out_proj = _linear(of.out_proj.weight, of.out_proj.bias)
        self.train(of.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (N, L, E) and, if needed, the weights (N, L, S), or (N, heads, L, S) without averaging.

        Args:
            query, key, value: (N, L, E) and twice (N, S, E); (L, N, E) ... without ``batch_first``; or without N.
            key_padding_mask: (N, S); True for ignored keys, or floats that are added to the logits.
            need_weights, average_attn_weights: whether weights are returned, and whether they are means over heads.
            attn_mask: (L, S) or (N * heads, L, S), with the same meaning.
            is_causal: PyTorch's hint about the mask.
        """
        single, swapped = query.dim() == 2, query.dim() == 3 and not self.batch_first
        q, k, v = (self._inside(x, single, swapped) for x in (query, key, value))
        q, k, v = (self._heads(project(x)) for project, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v)))
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if attn_mask is not None:
            per_head = attn_mask.dim() == 3
            logits = logits + _bias(attn_mask.reshape(logits.shape) if per_head else attn_mask, q.dtype)
        if key_padding_mask is not None:
            logits = logits + _bias(key_padding_mask.reshape(len(q), 1, 1, -1), q.dtype)
        weights = logits.softmax(-1)
        found = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if single:
            return found[0], None if shown is None else shown[0]
        return found.transpose(0, 1) if swapped else found, shown

    @staticmethod
    def _inside(x: Tensor, single: bool, swapped: bool) -> Tensor:
        """Return a sequence as (N, L, E)."""
        return x[None] if single else x.transpose(0, 1) if swapped else x

    def _heads(self, x: Tensor) -> Tensor:
        """Return (N, L, E) as (N, heads, L, E / heads)."""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear with this weight (out, in) and bias (out,)."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as a bias of logits; in a bool mask, True marks ignored keys."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))
