# SPDX-License-Identifier: Apache-2.0
"""Prints tests/weights/config_fields.json: the fields that timm's and transformers' configurations have, and timm's Vision
Transformers that compute something else with tensors of the same names. Needs timm and transformers (./dev peers).
"""
import dataclasses
import inspect
import json

import timm
import timm.models.vision_transformer as vit
import torch
import transformers
from timm.models._pretrained import PretrainedCfg
from transformers.processing_utils import ImagesKwargs


def unlike():
    """By architecture: what differs from a ViT of exact GELU, pre-norm blocks and heads that are 64 wide."""
    found = {}
    for name in timm.list_models(module="vision_transformer"):
        with torch.device("meta"):
            model = timm.create_model(name)
        block = model.blocks[0]
        names = set(model.state_dict())
        if "norm_pre.weight" in names or "blocks.0.mlp.fc1_g.weight" in names or not {
                "blocks.0.norm1.bias", "blocks.0.attn.qkv.bias", "blocks.0.mlp.fc1.weight"} <= names or "blocks.0.attn.norm.weight" in names:
            continue  # known by its tensors
        why = [type(block.mlp.act).__name__] if type(block.mlp.act).__name__ != "GELU" else []
        why += [type(block).__name__] if type(block).__name__ != "Block" else []
        why += ["pool_include_prefix"] if model.pool_include_prefix else []
        found[name] = {"why": why, "heads": block.attn.num_heads, "width": model.embed_dim, "depth": len(model.blocks)}
    return found


arguments = [name for name in inspect.signature(vit.VisionTransformer.__init__).parameters if name != "self"]
lists = {
    "config.json of transformers": sorted({**transformers.ViTConfig().to_dict(), **transformers.DeiTConfig().to_dict()}),
    "preprocessor_config.json": sorted({*ImagesKwargs.__annotations__, *transformers.ViTImageProcessorPil().to_dict(),
                                        *transformers.DeiTImageProcessorPil().to_dict()}),
    "pretrained_cfg": sorted(field.name for field in dataclasses.fields(PretrainedCfg)),
    "model_args": sorted(arguments),
    "architectures": unlike()}
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in lists.items()) + "\n}")
