# SPDX-License-Identifier: Apache-2.0
"""Prints tests/weights/config_fields.json: the fields that timm's and transformers' configurations have, and timm's
architectures whose tensors have the names of Tessera's ViT, with what they compute differently. Needs timm and transformers (./dev peers).
"""
import dataclasses
import inspect
import json
import re
import sys

import timm
import timm.models.vision_transformer as vit
import torch
import transformers
from timm.models._pretrained import PretrainedCfg
from transformers.processing_utils import ImagesKwargs


# The tensors of Tessera's ViT, under timm's names.
KNOWN = re.compile(
    r"(cls_token|dist_token|reg_token|pos_embed|patch_embed\.proj\.(weight|bias)|(fc_)?norm\.(weight|bias)|"
    r"head(_dist)?\.(weight|bias)|pre_logits\.fc\.(weight|bias)|attn_pool\..*|"
    r"blocks\.\d+\.(norm[12]\.(weight|bias)|attn\.(qkv|proj|q_norm|k_norm)\.(weight|bias)|mlp\.fc[12]\.(weight|bias)|"
    r"ls[12]\.gamma|gamma_[12]))")


def difference(model):
    """What a ViT of Tessera computes differently: it has exact GELU, pre-norm blocks, biases, and no rotary positions."""
    block, names = model.blocks[0], set(model.state_dict())
    parts = {"act": (block.mlp.act, "GELU"), "mlp": (block.mlp, "Mlp"), "norm": (block.norm1, "LayerNorm"),
             "patch_embed": (model.patch_embed, "PatchEmbed")}
    why = [type(module).__name__ for module, plain in parts.values() if type(module).__name__ != plain]
    why += [type(block).__name__] if type(block).__name__ not in ("Block", "EvaBlock") else []
    why += ["rope"] if getattr(model, "rope", None) is not None else []
    why += ["pool_include_prefix"] if getattr(model, "pool_include_prefix", False) else []
    why += ["no qkv bias"] if "blocks.0.attn.qkv.bias" not in names else []
    why += ["eps"] if any(getattr(module, "eps", 1e-6) != 1e-6 for module in model.modules()) else []
    return why


def architectures():
    """Every architecture of timm without a tensor that Tessera's ViT lacks, by name. Takes some minutes."""
    found = {}
    for name in timm.list_models():
        try:
            with torch.device("meta"):
                model = timm.create_model(name)
        except Exception as error:  # some need a package that is not installed
            print(name, repr(error), file=sys.stderr)
            continue
        names = set(model.state_dict())
        if "patch_embed.proj.weight" not in names or not all(KNOWN.fullmatch(each) for each in names):
            continue
        found[name] = {"why": difference(model), "heads": model.blocks[0].attn.num_heads, "width": model.embed_dim,
                       "depth": len(model.blocks)}
    return found


arguments = [name for name in inspect.signature(vit.VisionTransformer.__init__).parameters if name != "self"]
lists = {
    "config.json of transformers": sorted({**transformers.ViTConfig().to_dict(), **transformers.DeiTConfig().to_dict()}),
    "preprocessor_config.json": sorted({*ImagesKwargs.__annotations__, *transformers.ViTImageProcessorPil().to_dict(),
                                        *transformers.DeiTImageProcessorPil().to_dict()}),
    "pretrained_cfg": sorted(field.name for field in dataclasses.fields(PretrainedCfg)),
    "model_args": sorted(arguments),
    "architectures": architectures()}
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in lists.items()) + "\n}")
