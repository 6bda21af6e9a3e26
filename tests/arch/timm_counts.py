# SPDX-License-Identifier: Apache-2.0
"""Prints what arch_test.cpp and timm_parameters.txt hold: parameters of timm's VisionTransformer.

Needs timm 1.0.31 (`./dev peers`).  `timm_counts.py counts` prints one line a size of the ladder,
`timm_counts.py names` one line a parameter of small variants, in state-dict order.  No memory is
allocated: everything is built on the meta device.
"""

import sys

from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

LADDER = [  # name, patch, width, depth, mlp width, heads, average of normed patches without class token
    ("mu/16", 16, 32, 1, 128, 2, False),
    ("Ti/16", 16, 192, 12, 768, 3, False),
    ("S/16", 16, 384, 12, 1536, 6, False),
    ("M/16", 16, 512, 12, 2048, 8, False),
    ("B/16", 16, 768, 12, 3072, 12, False),
    ("L/16", 16, 1024, 24, 4096, 16, False),
    ("So400m/14", 14, 1152, 27, 4304, 16, False),
    ("H/14", 14, 1280, 32, 5120, 16, False),
    ("g/14", 14, 1408, 40, 6144, 16, False),
    ("G/14", 14, 1664, 48, 8192, 16, False),
    ("e/14", 14, 1792, 56, 15360, 16, False),
    ("10B/14", 14, 5120, 32, 20480, 32, True),
    ("60B/14", 14, 10240, 48, 40960, 64, True),
    ("120B/14", 14, 14336, 48, 57344, 112, True),
]

SMALL = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10)
VARIANTS = {
    "plain": {},
    "gap": dict(class_token=False, global_pool="avg", in_chans=1),
    "registers": dict(reg_tokens=4, init_values=1e-5, qk_norm=True),
    "map": dict(class_token=False, global_pool="map"),
    "distilled": dict(kind=VisionTransformerDistilled),
    "norm_before_pool": dict(class_token=False, global_pool="avg", fc_norm=False),
}


def count(name, patch, width, depth, mlp, heads, average):
    pool = dict(class_token=False, global_pool="avg", fc_norm=False) if average else {}
    # timm takes int(width * mlp_ratio); the small excess keeps rounding from losing one.
    model = VisionTransformer(patch_size=patch, embed_dim=width, depth=depth, num_heads=heads,
                              mlp_ratio=(mlp + 1e-6) / width, device="meta", **pool)
    assert model.blocks[0].mlp.fc1.out_features == mlp
    return sum(p.numel() for p in model.parameters())


def main():
    if sys.argv[1:] == ["counts"]:
        for size in LADDER:
            print(size[0], count(*size))
    elif sys.argv[1:] == ["names"]:
        for variant, options in VARIANTS.items():
            kind = options.pop("kind", VisionTransformer)
            model = kind(**SMALL, **options, device="meta")
            for name, tensor in model.state_dict().items():
                print(variant, name, *tensor.shape)
    else:
        sys.exit(__doc__)


main()
