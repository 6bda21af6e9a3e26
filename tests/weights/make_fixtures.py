# SPDX-License-Identifier: Apache-2.0
"""Makes tests/weights/fixtures: small models written by timm, torchvision, transformers and NumPy, and what those
packages compute with them. Needs timm, torchvision, transformers, safetensors and NumPy (./dev peers).

    make_fixtures.py [FOLDER [FUNCTION ...]]   the functions named alone, such as write_timm_hub
"""
import argparse
import functools
import json
import pathlib
import sys

import numpy as np
import PIL.Image
import safetensors.torch
import timm.data
import timm.models.deit as timm_deit
import timm.models.vision_transformer as timm_vit
import torch
import torchvision.models.vision_transformer as torchvision_vit
try:
    import transformers
except ImportError:  # only the fixtures of Hugging Face need it
    transformers = None

SIZES = dict(image=12, patch=4, width=16, depth=2, heads=2, mlp=32, classes=5)
expected = {}


def images(size=SIZES["image"], count=2):
    """Knuth's multiplicative hash of the element's number, in [-1, 1): the C++ tests make the same."""
    n = count * 3 * size * size
    words = (np.arange(n, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(1 << 32)
    return torch.from_numpy((words.astype(np.float64) / 2.0 ** 31 - 1).astype(np.float32)).view(count, 3, size, size)


def randomise(model, seed):
    """Every parameter far from its initial value, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(noise * 0.2 + (1.0 if norm else 0.0))
    return model.eval()


def fill_by_name(model):
    """Every parameter by a formula of its name and the element's number, which the C++ tests know too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            first = functools.reduce(lambda word, byte: (word * 31 + byte) % (1 << 32), name.encode(), 0)
            numbers = np.arange(parameter.numel(), dtype=np.uint64) + np.uint64(first)
            words = (numbers * np.uint64(2654435761)) % np.uint64(1 << 32)
            norm = parameter.dim() == 1 and name.endswith("weight")
            values = (words.astype(np.float64) / 2.0 ** 31 - 1) * 0.25 + (1.0 if norm else 0.0)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).view_as(parameter))
    return model.eval()


def logits(name, model, **more):
    with torch.no_grad():
        out = model(images())
    out = getattr(out, "logits", out)
    expected[name] = {"logits": out.flatten().tolist(), **more}


def timm_model(**keys):
    s = SIZES
    return timm_vit.VisionTransformer(**{**dict(
        img_size=s["image"], patch_size=s["patch"], embed_dim=s["width"], depth=s["depth"], num_heads=s["heads"],
        mlp_ratio=s["mlp"] / s["width"], num_classes=s["classes"]), **keys})


def write_timm(folder):
    model = randomise(timm_model(), 1)
    safetensors.torch.save_file(model.state_dict(), folder / "timm.safetensors")
    logits("timm.safetensors", model)
    # A training checkpoint of timm: the averaged weights are those that are meant. MAE's and DeiT's fine-tuning
    # average the patches and norm after that.
    averaged, trained = randomise(timm_model(global_pool="avg"), 2), randomise(timm_model(global_pool="avg"), 3)
    torch.save({"epoch": 7, "arch": "vit", "args": argparse.Namespace(lr=0.1), "version": 2,
                "state_dict": {"module." + k: v for k, v in trained.state_dict().items()},
                "state_dict_ema": {"module." + k: v for k, v in averaged.state_dict().items()}},
               folder / "timm_training.pth.tar")
    logits("timm_training.pth.tar", averaged)
    logits("timm_training.pth.tar without ema", trained)


def write_timm_named(folder):
    """Training checkpoints of timm whose "arch" is that of train.py's --model."""
    state = randomise(timm_model(depth=1), 33).state_dict()
    for name, architecture in (("timm_rope.pth.tar", "vit_small_patch16_rope_ape_224"), ("timm_heads.pth.tar", "test_vit2")):
        torch.save({"epoch": 7, "arch": architecture, "state_dict": state}, folder / name)


def write_deit_distilled(folder):
    s = SIZES
    model = randomise(timm_deit.VisionTransformerDistilled(
        img_size=s["image"], patch_size=s["patch"], embed_dim=s["width"], depth=s["depth"], num_heads=s["heads"],
        mlp_ratio=s["mlp"] / s["width"], num_classes=s["classes"]), 12)
    safetensors.torch.save_file(model.state_dict(), folder / "deit_distilled.safetensors")
    logits("deit_distilled.safetensors", model)


def write_dinov2(folder):
    """DINOv2's own names, and what timm's loader makes of them."""
    model = randomise(timm_model(num_classes=0, reg_tokens=4, no_embed_class=True, init_values=1e-5), 4)
    generator = torch.Generator().manual_seed(5)
    state = {}
    for name, value in model.state_dict().items():
        if name == "pos_embed":
            state["pos_embed"] = torch.cat([torch.randn((1, 1, SIZES["width"]), generator=generator), value], 1)
        else:
            state[{"reg_token": "register_tokens"}.get(name, name)] = value
    state["mask_token"] = torch.zeros(1, SIZES["width"])
    torch.save(state, folder / "dinov2.pth")
    # As DINOv2's training names them with block_chunks = 2: blocks.CHUNK.BLOCK, the blocks numbered throughout.
    chunked = {f"blocks.{name.split('.')[1]}.{name[7:]}" if name.startswith("blocks.") else name: value
               for name, value in state.items()}
    torch.save({"teacher": {"backbone." + name: value for name, value in chunked.items()}}, folder / "dinov2_chunked.pth")
    filtered = timm_vit.checkpoint_filter_fn(dict(state), model)
    model.load_state_dict(filtered, strict=True)
    with torch.no_grad():
        features = model.forward_features(images())[:, 0]
    expected["dinov2.pth"] = {"features": features.flatten().tolist()}


def training_checkpoint(network, state, **args):
    """What DeiT's and MAE's save_model put into a file, with an optimizer that has stepped nothing yet."""
    return {"model": state, "optimizer": torch.optim.AdamW(network.parameters(), lr=1e-3).state_dict(), "epoch": 99,
            "scaler": {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
                       "_growth_tracker": 7},
            "args": argparse.Namespace(batch_size=128, lr=None, blr=5e-4, output_dir="./out", pin_mem=True, **args)}


def write_deit3(folder):
    """DeiT III's names: gamma_1 and gamma_2; its positions have no row for the class token."""
    model = fill_by_name(timm_model(no_embed_class=True, init_values=1e-4))
    state = {name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): value
             for name, value in model.state_dict().items()}
    torch.save(training_checkpoint(model, state, model="deit_tiny_patch4_LS", drop_path=0.1), folder / "deit3.pth")
    logits("deit3.pth", model)


def write_mae(folder):
    """MAE's encoder after pretraining, with and without what pretraining alone needs, and a network tuned from it."""
    s = SIZES
    model = fill_by_name(timm_model(num_classes=0))
    encoder = dict(model.state_dict())
    torch.save({"model": encoder}, folder / "mae_encoder.pth")  # as it is published
    decoder = torch.nn.ModuleDict({"decoder_embed": torch.nn.Linear(s["width"], 8),
                                   "decoder_norm": torch.nn.LayerNorm(8), "decoder_pred": torch.nn.Linear(8, 48)})
    rows = (s["image"] // s["patch"]) ** 2 + 1
    full = {**encoder, "mask_token": torch.ones(1, 1, 8), "decoder_pos_embed": torch.ones(1, rows, 8),
            **fill_by_name(decoder).state_dict(),
            **{"decoder_blocks.0." + name: value for name, value in
               timm_vit.Block(8, num_heads=2).state_dict().items() if name.startswith("norm")}}
    torch.save(training_checkpoint(model, full, model="mae_vit_tiny_patch4", mask_ratio=0.75), folder / "mae_pretrained.pth")
    with torch.no_grad():
        features = model.forward_features(images())[:, 0]
    expected["mae_encoder.pth"] = {"features": features.flatten().tolist()}
    expected["mae_pretrained.pth"] = expected["mae_encoder.pth"]
    tuned = fill_by_name(timm_model(global_pool="avg"))  # the norm is after the average, and is fc_norm
    torch.save(training_checkpoint(tuned, dict(tuned.state_dict()), model="vit_tiny_patch4", global_pool=True),
               folder / "mae_finetuned.pth")
    logits("mae_finetuned.pth", tuned)


def write_torchvision(folder):
    s = SIZES
    model = torchvision_vit.VisionTransformer(s["image"], s["patch"], s["depth"], s["heads"], s["width"], s["mlp"],
                                              num_classes=s["classes"])
    randomise(model, 6)
    torch.save(model.state_dict(), folder / "torchvision.pth")
    logits("torchvision.pth", model)
    tanh = torchvision_vit.VisionTransformer(s["image"], s["patch"], s["depth"], s["heads"], s["width"], s["mlp"],
                                             num_classes=s["classes"], representation_size=s["width"])
    randomise(tanh, 7)
    torch.save(tanh.state_dict(), folder / "torchvision_tanh.pth")
    logits("torchvision_tanh.pth", tanh)


def write_hugging_face(folder):
    s = SIZES
    config = transformers.ViTConfig(
        hidden_size=s["width"], num_hidden_layers=s["depth"], num_attention_heads=s["heads"], intermediate_size=s["mlp"],
        image_size=s["image"], patch_size=s["patch"], id2label=dict(enumerate("apple pear plum quince fig".split())),
        label2id={n: i for i, n in enumerate("apple pear plum quince fig".split())})
    model = randomise(transformers.ViTForImageClassification(config), 8)
    for name, size in (("hf", "1GB"), ("hf_sharded", "15KB")):
        model.save_pretrained(folder / name, max_shard_size=size)
        (folder / name / "preprocessor_config.json").write_text(json.dumps({
            "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
            "size": {"height": s["image"], "width": s["image"]}, "resample": 2, "rescale_factor": 1 / 255,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}))
    logits("hf", model)


def wide_picture(path):
    """24 x 14 px, so that every way to crop shows another part of it."""
    x, y = np.meshgrid(np.arange(24), np.arange(14))
    pixels = np.stack([x * 10, y * 18, (x * y * 7) % 256], -1).astype(np.uint8)
    PIL.Image.fromarray(pixels).save(path)
    return PIL.Image.open(path)


def write_hugging_face_deit(folder):
    """DeiT with one head and with two, and the names that transformers 5 has in memory, wrapped."""
    s = SIZES
    config = dict(hidden_size=s["width"], num_hidden_layers=s["depth"], num_attention_heads=s["heads"], intermediate_size=s["mlp"],
                  image_size=s["image"], patch_size=s["patch"], num_labels=s["classes"])
    deit = transformers.DeiTConfig(**config)
    for name, kind, seed in (("hf_deit", transformers.DeiTForImageClassification, 13),
                             ("hf_deit_teacher", transformers.DeiTForImageClassificationWithTeacher, 14)):
        model = randomise(kind(deit), seed)
        model.save_pretrained(folder / name)
        logits(name, model)
        if name == "hf_deit":  # a processor that scales pixels otherwise, squashes and crops
            square = lambda side: {"height": side, "width": side}
            processor = transformers.DeiTImageProcessorPil(size=square(14), crop_size=square(12), rescale_factor=1 / 128)
            processor.save_pretrained(folder / name)
            with torch.no_grad():
                out = model(**processor(wide_picture(folder / name / "wide.png"), return_tensors="pt")).logits
            expected[name]["probabilities"] = out.softmax(1).flatten().tolist()
    model = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**config)), 15)
    (folder / "hf_memory").mkdir(exist_ok=True)
    (folder / "hf_memory/config.json").write_text(model.config.to_json_string())
    torch.save({"module." + name: value for name, value in model.state_dict().items()}, folder / "hf_memory/pytorch_model.bin")
    logits("hf_memory", model)


def write_timm_hub(folder):
    """A folder of the hub: its config.json says what neither names nor shapes of the tensors do."""
    (folder / "timm_hub").mkdir(exist_ok=True)
    model = randomise(timm_model(global_pool="avg", fc_norm=False), 16)
    safetensors.torch.save_file(model.state_dict(), folder / "timm_hub/model.safetensors")
    logits("timm_hub", model)
    cfg = {"input_size": [3, 12, 12], "test_input_size": [3, 16, 16], "mean": [0.5, 0.4, 0.3], "std": [0.25, 0.5, 0.75],
           "interpolation": "bicubic", "crop_pct": 0.8, "crop_mode": "squash", "label_names": "apple pear plum quince fig".split(),
           "first_conv": "patch_embed.proj", "classifier": "head"}
    (folder / "timm_hub/config.json").write_text(json.dumps({
        "architecture": "vit_tiny_patch16_224", "num_classes": 5, "global_pool": "avg",
        "model_args": {"num_heads": 2, "fc_norm": False, "global_pool": "avg"}, "pretrained_cfg": cfg}) + "\n")
    data = timm.data.resolve_data_config(pretrained_cfg=cfg)
    picture = timm.data.create_transform(**data)(wide_picture(folder / "timm_hub/wide.png"))
    with torch.no_grad():
        expected["timm_hub"]["probabilities"] = model(picture[None]).softmax(1).flatten().tolist()


def google(state, big_vision, heads):
    """The arrays that Flax would hold for a timm model's weights."""
    numbers = (0, 1, 0) if big_vision else (1, 2, 3)
    width = state["cls_token"].shape[-1] if "cls_token" in state else state["patch_embed.proj.weight"].shape[0]
    out = {"embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
           "embedding/bias": state["patch_embed.proj.bias"]}

    def dense(theirs, ours):
        out[theirs + "/kernel"] = state[ours + ".weight"].T
        out[theirs + "/bias"] = state[ours + ".bias"]

    def norm(theirs, ours):
        out[theirs + "/scale"] = state[ours + ".weight"]
        out[theirs + "/bias"] = state[ours + ".bias"]

    def heads_of(theirs, weight, bias):
        out[theirs + "/kernel"] = weight.T.reshape(width, heads, -1)
        out[theirs + "/bias"] = bias.reshape(heads, -1)

    def attention(theirs, query, rest, proj):
        weights = np.concatenate([state[n + ".weight"] for n in (query, *rest)])
        biases = np.concatenate([state[n + ".bias"] for n in (query, *rest)])
        for i, name in enumerate(("query", "key", "value")):
            rows = slice(i * width, (i + 1) * width)
            heads_of(f"{theirs}/{name}", weights[rows], biases[rows])
        out[theirs + "/out/kernel"] = state[proj + ".weight"].T.reshape(heads, -1, width)
        out[theirs + "/out/bias"] = state[proj + ".bias"]

    for i in range(SIZES["depth"]):
        block, ours = f"Transformer/encoderblock_{i}", f"blocks.{i}"
        norm(f"{block}/LayerNorm_0", f"{ours}.norm1")
        attention(f"{block}/MultiHeadDotProductAttention_{numbers[0]}", f"{ours}.attn.qkv", (), f"{ours}.attn.proj")
        norm(f"{block}/LayerNorm_{numbers[1]}", f"{ours}.norm2")
        dense(f"{block}/MlpBlock_{numbers[2]}/Dense_0", f"{ours}.mlp.fc1")
        dense(f"{block}/MlpBlock_{numbers[2]}/Dense_1", f"{ours}.mlp.fc2")
    norm("Transformer/encoder_norm", "norm")
    dense("head", "head")
    out["pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"] = state["pos_embed"]
    if "cls_token" in state:
        out["cls"] = state["cls_token"]
    if "attn_pool.latent" in state:
        out["MAPHead_0/probe"] = state["attn_pool.latent"]
        attention("MAPHead_0/MultiHeadDotProductAttention_0", "attn_pool.q", ("attn_pool.kv",), "attn_pool.proj")
        norm("MAPHead_0/LayerNorm_0", "attn_pool.norm")
        dense("MAPHead_0/MlpBlock_0/Dense_0", "attn_pool.mlp.fc1")
        dense("MAPHead_0/MlpBlock_0/Dense_1", "attn_pool.mlp.fc2")
    return {name: np.ascontiguousarray(value) for name, value in out.items()}


def stacked(arrays):
    """All blocks in one array each, as Flax's scan makes them."""
    out, blocks = {}, {}
    for name, value in arrays.items():
        if "/encoderblock_" in name:
            head, tail = name.split("/encoderblock_")
            number, rest = tail.split("/", 1)
            blocks.setdefault(f"{head}/encoderblock/{rest}", {})[int(number)] = value
        else:
            out[name] = value
    for name, values in blocks.items():
        out[name] = np.stack([values[i] for i in sorted(values)])
    return out


def write_google(folder):
    s = SIZES
    numpy_state = lambda model: {k: v.numpy() for k, v in model.state_dict().items()}
    source = randomise(timm_model(), 9)
    np.savez(folder / "google.npz", **google(numpy_state(source), False, s["heads"]))
    model = timm_model()
    timm_vit._load_weights(model.eval(), str(folder / "google.npz"))  # timm's own reader is the judge
    logits("google.npz", model)
    source = randomise(timm_model(global_pool="map", class_token=False), 10)
    arrays = {"params/" + name: value for name, value in google(numpy_state(source), True, s["heads"]).items()}
    np.savez(folder / "big_vision.npz", **arrays)
    model = timm_model(global_pool="map", class_token=False)
    timm_vit._load_weights(model.eval(), str(folder / "big_vision.npz"), prefix="params/")
    logits("big_vision.npz", model)
    keys = dict(global_pool="avg", class_token=False, fc_norm=False)
    source = randomise(timm_model(**keys), 11)
    np.savez(folder / "big_vision_gap.npz", **google(numpy_state(source), True, s["heads"]))
    model = timm_model(**keys)
    timm_vit._load_weights(model.eval(), str(folder / "big_vision_gap.npz"))
    logits("big_vision_gap.npz", model)
    # The same as its training saves it: scanned blocks, half of it bfloat16, some in Fortran's order, packed.
    scanned = {}
    for i, (name, value) in enumerate(stacked(arrays).items()):
        scanned[name.replace("params/", "params/img/")] = np.asfortranarray(value) if i % 2 else value
    scanned["params/t"] = np.zeros(1, np.float32)
    np.savez_compressed(folder / "big_vision_scan.npz", **scanned)
    expected["big_vision_scan.npz"] = expected["big_vision.npz"]


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "fixtures")
    folder.mkdir(parents=True, exist_ok=True)
    only = sys.argv[2:]
    if only:
        expected.update(json.loads((folder / "expected.json").read_text()))
    for write in (write_timm, write_timm_named, write_deit_distilled, write_deit3, write_mae, write_dinov2, write_torchvision,
                  write_hugging_face, write_hugging_face_deit, write_timm_hub, write_google):
        if not only or write.__name__ in only:
            write(folder)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
