"""Fast paths: each file replaces plain code of the other packages, gives the same results, and can be switched off.

`training.fast=false` switches them off for a run, and the environment variable HEADSTART_FAST=0 for a process.
"""

import os
from typing import TYPE_CHECKING, Literal

from headstart.data import pretoken_cache

if TYPE_CHECKING:
    import torch

    from headstart.models.model import Model

Mode = Literal["train", "evaluate", "infer", "generate"]
_setting = True  # training.fast of the run


def is_enabled() -> bool:
    """Whether fast paths are used."""
    return _setting and os.environ.get("HEADSTART_FAST", "1") not in ("0", "false")


def set_enabled(setting: bool) -> None:
    """Apply `training.fast` to this process."""
    global _setting
    _setting = pretoken_cache.enabled = setting


def optimize(model: "Model", mode: Mode = "train", dtype: "torch.dtype | None" = None) -> "Model":
    """The model with fast paths, if they are enabled: modules of plain classes get fast subclasses of these.

    "train" and "evaluate" change the model itself. "infer" (for many texts, under autocast to `dtype` if that is given)
    and "generate" (one token at a time) return a copy for inference with the same weights.
    """
    if not is_enabled():
        return model if mode == "train" else model.eval()
    import torch

    from headstart.fast.cpu_decoder import cast_linears, prepack

    if mode in ("train", "evaluate"):
        return _with_fast_classes(model, mode)
    is_cpu, is_float32 = model.backbone.table.device.type == "cpu", dtype in (None, torch.float32)
    if mode == "infer" and not is_cpu:
        return _with_fast_classes(model, mode).eval()
    copy = prepack(model) if is_float32 or dtype is None else cast_linears(model, dtype)
    copy = _with_fast_classes(copy, mode)
    return _with_unpadding(copy) if mode == "infer" else _with_cpu_decoder(copy)


def _with_fast_classes(model: "Model", mode: Mode) -> "Model":
    from torch import nn

    from headstart.fast.layers import ByteMaskAttention, ByteMaskDropout, InPlaceRotary, OutputPositionsBlock
    from headstart.models.backbones import EncoderDecoderBackbone
    from headstart.models.transformer import Block, Rotary, ScaledDotProductAttention

    classes: dict[type[nn.Module], type[nn.Module]] = {Rotary: InPlaceRotary}
    has_two_stacks = any(isinstance(module, EncoderDecoderBackbone) for module in model.modules())
    if mode == "train":
        classes |= {nn.Dropout: ByteMaskDropout, ScaledDotProductAttention: ByteMaskAttention}
    if mode == "train" or (mode != "generate" and not has_two_stacks):  # a translator predicts every position
        classes |= {Block: OutputPositionsBlock}
    for module in model.modules():
        module.__class__ = classes.get(type(module), type(module))
    return model


def _with_unpadding(model: "Model") -> "Model":
    from headstart.fast.unpad import UnpaddedBidirectionalBackbone, UnpaddedCausalBackbone
    from headstart.models.backbones import BidirectionalBackbone, CausalBackbone

    if type(model.backbone) is CausalBackbone:
        model.backbone.__class__ = UnpaddedCausalBackbone
    elif type(model.backbone) is BidirectionalBackbone:
        model.backbone.__class__ = UnpaddedBidirectionalBackbone
    return model


def _with_cpu_decoder(model: "Model") -> "Model":
    from headstart.fast.cpu_decoder import install_cpu_decoder, install_prepacked_head

    install_cpu_decoder(model.backbone)
    for head in model.heads.values():
        install_prepacked_head(head, model.backbone.table)
    return model
